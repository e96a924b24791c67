"""An HTTP service with a Kafka transaction for each request: an order and its stock movements, all of them or none.

    BOOTSTRAP_SERVERS=localhost:9092 python examples/transactional_service/orders.py --port 8000
    curl -d '{"id": "o-1", "lines": [{"item": "tea", "count": 2}]}' http://localhost:8000/orders

The prefix of the transactional ids is that of the instance: ``--instance`` differs for each process that runs at the
same time, and is the same after a restart (in Kubernetes: the pod's name in a StatefulSet).
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
"""How long a caller waits for Kafka before the service answers without a result."""
CLOSE_SECONDS = 2.0
"""How long the pool waits for open transactions when the last request is answered."""
SHUTDOWN_SECONDS = 10.0
"""From SIGTERM to the end: less than the 30 s after which Kubernetes kills."""


class InvalidOrderError(Exception):
    """The order cannot be stored; none of it is."""


def send_order(transaction: Transaction, order: Any) -> None:
    """Send the order and a stock movement for each line.

    It checks a line when it comes to it: a wrong one aborts the transaction, with the records that were sent before.
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
    """201: the order is committed. 422: it is invalid. 503: nothing was stored, try again. 504: it may be stored."""
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
        # Without a transaction all producers are busy, or Kafka cannot be reached. A commit that was sent goes on.
        is_nothing_stored = transaction is None or await was_aborted(transaction)
        text = str(error) or f"no answer from Kafka within {seconds:g} s"
        return JSONResponse({"error": text}, status_code=503 if is_nothing_stored else 504)
    return JSONResponse({"stored": 1 + len(order["lines"])}, status_code=201)


async def was_aborted(transaction: Transaction) -> bool:
    """Whether it is known that no record of the transaction will be seen by readers of committed records."""
    try:
        async with asyncio.timeout(1):
            return await transaction.outcome() == "aborted"
    except (KafkaError, TimeoutError):
        return False


async def get_health(request: Request) -> Response:
    """200 while the pool takes transactions; 503 when another process has taken its transactional ids."""
    pool: TransactionPool = request.app.state.pool
    health = {"usable": pool.is_usable, "producers_busy": pool.busy, "requests_waiting": pool.waiting}
    return JSONResponse(health, status_code=200 if pool.is_usable else 503)


def make_app(pool: TransactionPool, request_seconds: float = REQUEST_SECONDS) -> Starlette:
    """The service around a pool, which it starts and, at its end, closes."""

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
    parser = argparse.ArgumentParser(description="Orders over HTTP into Kafka, each in a transaction.")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--instance", default="0")
    parser.add_argument("--producers", type=int, default=8)
    parser.add_argument("--request-seconds", type=float, default=REQUEST_SECONDS)
    arguments = parser.parse_args()
    pool = TransactionPool(
        transactional_id_prefix=f"order-service-{arguments.instance}",
        max_producers=arguments.producers,
        # A caller that waits longer is answered 503, and may try again at once elsewhere.
        acquire_timeout_ms=1000,
        bootstrap_servers=os.environ.get("BOOTSTRAP_SERVERS", "localhost:9092"),
        # No reader waits longer for an order that a crash has left open.
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
