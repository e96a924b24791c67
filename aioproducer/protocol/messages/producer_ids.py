"""InitProducerId: the id and epoch that a producer puts into its batches (KIP-98, KIP-360)."""

from __future__ import annotations

from aioproducer.protocol.schema import Request, Response, int16, int32, int64, string


class InitProducerIdResponse(Response, api_key=22, versions="0-5", flexible="2+"):
    """The producer id and epoch to use."""

    throttle_time_ms: int = int32("0+", ignorable=True)
    error_code: int = int16("0+")
    producer_id: int = int64("0+", default=-1)
    producer_epoch: int = int16("0+")


class InitProducerIdRequest(Request[InitProducerIdResponse], api_key=22, versions="0-5", flexible="2+"):
    """Request a producer id and epoch, for an idempotent (``transactional_id`` ``None``) or transactional producer.

    From version 3 on a producer that has an id requests the next epoch of it (KIP-360).
    """

    transactional_id: str | None = string("0+", nullable="0+")
    transaction_timeout_ms: int = int32("0+")
    producer_id: int = int64("3+", default=-1)
    producer_epoch: int = int16("3+", default=-1)
