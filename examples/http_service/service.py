"""An HTTP service that answers when Kafka has the event, and ends without losing one.

    BOOTSTRAP_SERVERS=localhost:9092 python examples/http_service/service.py --port 8000
    curl -d '{"user": "ada"}' http://localhost:8000/events/signups

On SIGTERM it accepts no new connections, answers its open requests, delivers the producer's last records, and ends
within ``SHUTDOWN_SECONDS``, even if Kafka does not answer.
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
"""Seconds that a request waits for Kafka by default before the response asks the client to try again."""
CLOSE_SECONDS = 2.0
"""Seconds for the producer to deliver its last records after the last request is answered."""
SHUTDOWN_SECONDS = 10.0
"""Seconds from SIGTERM to the end: less than the 30 s after which Kubernetes sends SIGKILL."""


async def post_event(request: Request) -> Response:
    """Return 201 with the record's partition and offset; 503 if the client may try again, 400 if that is no use.

    With ``?wait=no``, return 202 at once; if the record is not delivered, that is logged.
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
        # The record may still be stored, so a client that tries again may store it twice.
        return JSONResponse({"error": f"no answer from Kafka within {seconds:g} s"}, status_code=503)
    finally:
        request.app.state.waiting -= 1
    return JSONResponse({"partition": stored.partition, "offset": stored.offset}, status_code=201)


async def get_health(request: Request) -> Response:
    """Return 200 while Kafka keeps up; 503 if half of the buffer waits for it."""
    producer: Producer = request.app.state.producer
    free = producer.metrics()["buffer-available-bytes"]
    total = producer.config.buffer_memory
    health = {"buffer_free": free / total, "requests_waiting": request.app.state.waiting}
    return JSONResponse(health, status_code=200 if free > total / 2 else 503)


def make_app(producer: Producer, request_seconds: float = REQUEST_SECONDS) -> Starlette:
    """Return the service, which starts a producer and closes it at its end."""

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        await producer.start()
        try:
            yield
        finally:
            # Every request is answered by now. Records that are not delivered in time fail, which is logged.
            await producer.close(timeout=CLOSE_SECONDS)

    routes = [Route("/events/{topic}", post_event, methods=["POST"]), Route("/health", get_health)]
    app = Starlette(routes=routes, lifespan=lifespan)
    app.state.producer = producer
    app.state.request_seconds = request_seconds
    app.state.waiting = 0
    return app


def main() -> None:
    parser = argparse.ArgumentParser(description="Send events from HTTP requests to Kafka.")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--request-seconds", type=float, default=REQUEST_SECONDS)
    arguments = parser.parse_args()
    servers = os.environ.get("BOOTSTRAP_SERVERS", "localhost:9092")
    uvicorn.run(
        make_app(Producer(bootstrap_servers=servers, compression_type="lz4"), arguments.request_seconds),
        host=arguments.host,
        port=arguments.port,
        # The time for open requests; the rest is for the lifespan above, which ends after them.
        timeout_graceful_shutdown=int(SHUTDOWN_SECONDS - CLOSE_SECONDS),
    )


if __name__ == "__main__":
    main()
