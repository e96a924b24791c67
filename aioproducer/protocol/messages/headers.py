"""The headers of requests and responses."""

from __future__ import annotations

from aioproducer.protocol.schema import Data, int16, int32, string


class RequestHeader(Data, versions="1-2", flexible="2+"):
    """The header of a request: version 2 if the request's version is flexible, else 1."""

    request_api_key: int = int16("0+")
    request_api_version: int = int16("0+")
    correlation_id: int = int32("0+")
    # Keeps the old encoding in version 2, so that a broker can read it in an ApiVersions request of any version.
    client_id: str | None = string("1+", nullable="1+", flexible=False)


class ResponseHeader(Data, versions="0-1", flexible="1+"):
    """The header of a response: version 1 if the response's version is flexible, else 0; always 0 for ApiVersions."""

    correlation_id: int = int32("0+")
