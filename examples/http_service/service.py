"""An HTTP service that answers when Kafka has the event, and ends without losing one.

    BOOTSTRAP_SERVERS=localhost:9092 python examples/http_service/service.py --port 8000
    curl -d '{"user": "ada"}' http://localhost:8000/events/signups

On SIGTERM it takes no new connections, answers the requests it has, delivers what the producer still holds, and is gone
within ``SHUTDOWN_SECONDS``, also where Kafka does not answer.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
from collections.abc import AsyncIterator

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from aioproducer import KafkaError, Producer

REQUEST_SECONDS = 5.0
"""How long a caller waits for Kafka, unless told otherwise, before it is told to try again."""
CLOSE_SECONDS = 2.0
"""How long the producer may take for what it still holds when the last request is answered."""
SHUTDOWN_SECONDS = 10.0
"""From SIGTERM to the end: less than the 30 s after which Kubernetes kills."""


async def post_event(request: Request) -> Response:
    """201 with the record's place; 503 where the caller may try again, 400 where that is no use.

    With ``?wait=no`` 202 at once: the record is on its way, and whether it arrives only the log will tell.
    """
    producer: Producer = request.app.state.producer
    topic, key, event = request.path_params["topic"], request.headers.get("x-key"), await request.body()
    seconds: float = request.app.state.request_seconds
    request.app.state.waiting += 1
    try:
        async with asyncio.timeout(seconds):
            delivery = producer.send(topic, event, key=None if key is None else key.encode())
            if request.query_params.get("wait") == "no":
                await producer.drain()
                return Response(status_code=202)
            stored = await delivery
    except KafkaError as error:
        return JSONResponse({"error": str(error)}, status_code=503 if error.retriable else 400)
    except TimeoutError:
        # The record may still arrive: a client that tries again sends it a second time.
        return JSONResponse({"error": f"no answer from Kafka within {seconds:g} s"}, status_code=503)
    finally:
        request.app.state.waiting -= 1
    return JSONResponse({"partition": stored.partition, "offset": stored.offset}, status_code=201)


async def get_health(request: Request) -> Response:
    """200 while Kafka takes what is sent; 503 when half of the buffer waits for it."""
    producer: Producer = request.app.state.producer
    free = producer.metrics()["buffer-available-bytes"]
    total = producer.config.buffer_memory
    health = {"buffer_free": free / total, "requests_waiting": request.app.state.waiting}
    return JSONResponse(health, status_code=200 if free > total / 2 else 503)


def make_app(producer: Producer, request_seconds: float = REQUEST_SECONDS) -> Starlette:
    """The service around a producer, which it starts and, at its end, closes."""

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        await producer.start()
        try:
            yield
        finally:
            # Every request is answered by now. What is not delivered in time fails, and the log says so.
            await producer.close(timeout=CLOSE_SECONDS)

    routes = [Route("/events/{topic}", post_event, methods=["POST"]), Route("/health", get_health)]
    app = Starlette(routes=routes, lifespan=lifespan)
    app.state.producer = producer
    app.state.request_seconds = request_seconds
    app.state.waiting = 0
    return app


def main() -> None:
    parser = argparse.ArgumentParser(description="Events over HTTP into Kafka.")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--request-seconds", type=float, default=REQUEST_SECONDS)
    arguments = parser.parse_args()
    servers = os.environ.get("BOOTSTRAP_SERVERS", "localhost:9092")
    uvicorn.run(
        make_app(Producer(bootstrap_servers=servers, compression_type="lz4"), arguments.request_seconds),
        host=arguments.host,
        port=arguments.port,
        # The requests' part of the time; the lifespan above, which comes after them, has the rest.
        timeout_graceful_shutdown=int(SHUTDOWN_SECONDS - CLOSE_SECONDS),
    )


if __name__ == "__main__":
    main()
