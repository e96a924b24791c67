"""An HTTP service with a Kafka transaction for each request: an order and its stock movements, all of them or none.

    BOOTSTRAP_SERVERS=localhost:9092 python examples/transactional_service/orders.py --port 8000
    curl -d '{"id": "o-1", "lines": [{"item": "tea", "count": 2}]}' http://localhost:8000/orders

The instance's name is the prefix of the transactional ids: ``--instance`` must differ between processes that run at the
same time, and stay the same after a restart (in Kubernetes: the pod's name in a StatefulSet).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from aioproducer import KafkaError, Transaction, TransactionPool

REQUEST_SECONDS = 5.0
"""Seconds that a request waits for Kafka before the service answers without a result."""
CLOSE_SECONDS = 2.0
"""Seconds that the pool waits for open transactions after the last request is answered."""
SHUTDOWN_SECONDS = 10.0
"""Seconds from SIGTERM to the end: less than the 30 s after which Kubernetes sends SIGKILL."""


class InvalidOrderError(Exception):
    """The order is invalid; none of it is stored."""


def send_order(transaction: Transaction, order: Any) -> None:
    """Send the order and a stock movement for each line.

    Each line is checked before it is sent. A wrong one aborts the transaction, including the records sent before.
    """
    try:
        order_id, lines = str(order["id"]), list(order["lines"])
        transaction.send("orders", json.dumps(order).encode(), key=order_id.encode())
        for line in lines:
            item, count = str(line["item"]), int(line["count"])
            if count < 1:
                raise InvalidOrderError(f"count of {item!r} must be at least 1, not {count}")
            movement = {"order": order_id, "change": -count}
            transaction.send("stock", json.dumps(movement).encode(), key=item.encode())
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidOrderError(f"not an order: {error!r}") from error


async def post_order(request: Request) -> Response:
    """Return 201 if the order is committed, 422 if it is invalid, 503 if nothing is stored, 504 if that is unknown."""
    pool: TransactionPool = request.app.state.pool
    seconds: float = request.app.state.request_seconds
    try:
        order = await request.json()
    except ValueError as error:
        return JSONResponse({"error": f"not JSON: {error}"}, status_code=400)
    transaction: Transaction | None = None
    try:
        async with asyncio.timeout(seconds), pool.transaction() as transaction:
            send_order(transaction, order)
    except InvalidOrderError as error:
        return JSONResponse({"error": str(error)}, status_code=422)
    except (KafkaError, TimeoutError) as error:
        # Without a transaction, all producers are busy or Kafka cannot be reached. A commit that was sent continues.
        is_nothing_stored = transaction is None or await was_aborted(transaction)
        text = str(error) or f"no answer from Kafka within {seconds:g} s"
        return JSONResponse({"error": text}, status_code=503 if is_nothing_stored else 504)
    return JSONResponse({"stored": 1 + len(order["lines"])}, status_code=201)


async def was_aborted(transaction: Transaction) -> bool:
    """Return whether it is certain that readers of committed records will see no record of the transaction."""
    try:
        async with asyncio.timeout(1):
            return await transaction.outcome() == "aborted"
    except (KafkaError, TimeoutError):
        return False


async def get_health(request: Request) -> Response:
    """Return 200 while the pool accepts transactions; 503 if another process has taken its transactional ids."""
    pool: TransactionPool = request.app.state.pool
    health = {"usable": pool.is_usable, "producers_busy": pool.busy, "requests_waiting": pool.waiting}
    return JSONResponse(health, status_code=200 if pool.is_usable else 503)


def make_app(pool: TransactionPool, request_seconds: float = REQUEST_SECONDS) -> Starlette:
    """Return the service, which starts a pool and closes it at its end."""

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        await pool.start()
        try:
            yield
        finally:
            await pool.close(timeout=CLOSE_SECONDS)

    routes = [Route("/orders", post_order, methods=["POST"]), Route("/health", get_health)]
    app = Starlette(routes=routes, lifespan=lifespan)
    app.state.pool = pool
    app.state.request_seconds = request_seconds
    return app


def main() -> None:
    parser = argparse.ArgumentParser(description="Store orders from HTTP requests in Kafka, each in a transaction.")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--instance", default="0")
    parser.add_argument("--producers", type=int, default=8)
    parser.add_argument("--request-seconds", type=float, default=REQUEST_SECONDS)
    arguments = parser.parse_args()
    pool = TransactionPool(
        transactional_id_prefix=f"order-service-{arguments.instance}",
        max_producers=arguments.producers,
        # A client that would wait longer receives 503, and may try another instance at once.
        acquire_timeout_ms=1000,
        bootstrap_servers=os.environ.get("BOOTSTRAP_SERVERS", "localhost:9092"),
        # Readers wait at most this long for an order that a crash has left open.
        transaction_timeout_ms=15_000,
    )
    uvicorn.run(
        make_app(pool, arguments.request_seconds),
        host=arguments.host,
        port=arguments.port,
        timeout_graceful_shutdown=int(SHUTDOWN_SECONDS - CLOSE_SECONDS),
    )


if __name__ == "__main__":
    main()
