"""Client metrics for the broker (KIP-714)."""

from __future__ import annotations

from aioproducer.protocol.schema import (
    INT8,
    STRING,
    Request,
    Response,
    array,
    binary,
    boolean,
    int8,
    int16,
    int32,
    uuid,
)


class GetTelemetrySubscriptionsResponse(Response, api_key=71, versions="0", flexible="0+"):
    """The metrics that the broker requests, their interval and compression."""

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    client_instance_id: bytes = uuid("0+")
    subscription_id: int = int32("0+")
    accepted_compression_types: list[int] = array(INT8, "0+")
    push_interval_ms: int = int32("0+")
    telemetry_max_bytes: int = int32("0+")
    delta_temporality: bool = boolean("0+")
    requested_metrics: list[str] = array(STRING, "0+")


class GetTelemetrySubscriptionsRequest(
    Request[GetTelemetrySubscriptionsResponse], api_key=71, versions="0", flexible="0+"
):
    """Request the broker's subscription; a zero ``client_instance_id`` requests a new one."""

    client_instance_id: bytes = uuid("0+")


class PushTelemetryResponse(Response, api_key=72, versions="0", flexible="0+"):
    """Whether the metrics were accepted."""

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")


class PushTelemetryRequest(Request[PushTelemetryResponse], api_key=72, versions="0", flexible="0+"):
    """Metrics as an OpenTelemetry ``MetricsData`` message, compressed by ``compression_type``."""

    client_instance_id: bytes = uuid("0+")
    subscription_id: int = int32("0+")
    terminating: bool = boolean("0+")
    compression_type: int = int8("0+")
    metrics: bytes = binary("0+")
