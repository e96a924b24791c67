"""A stand-in for the transaction coordinators that leaders of partitions send requests to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence


class Verifier:
    """Answers with ``codes`` in order, and with ``code`` from then on; keeps the requests."""

    def __init__(self, *codes: int | Mapping[int, int]) -> None:
        """A mapping has the codes of partitions by index."""
        self.codes = list(codes)
        self.code = 0
        self.asked: list[tuple[str, int, int, tuple[tuple[str, int], ...], bool]] = []
        self.meanwhile: Callable[[], object] = lambda: None

    async def add_or_verify(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Sequence[tuple[str, int]],
        *,
        verify_only: bool,
    ) -> dict[tuple[str, int], int]:
        self.asked.append((transactional_id, producer_id, producer_epoch, tuple(partitions), verify_only))
        await asyncio.sleep(0)
        self.meanwhile()
        code = self.codes.pop(0) if self.codes else self.code
        return {key: code if isinstance(code, int) else code.get(key[1], 0) for key in partitions}
