"""How a cleaned segment replaces others, so that a crash at any step loses nothing (``LocalLog.replaceSegments``).

1. The cleaned segment is complete and on disk, in files that end with ``.cleaned``. A crash before the next step leaves
   the old segments; the next start deletes the ``.cleaned`` files.
2. The files are renamed to ``.swap``. From the first of these renames until the last one, a start finds ``.cleaned``
   files as well and keeps the old segments.
3. The old segments are deleted, one a step. A start that finds ``.swap`` files deletes the rest of them.
4. The ``.swap`` files get their final names. A start renames those that are left.

Apache Kafka uses the same names and continues such a swap in the same way.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from aioproducer.broker.log.config import LogConfig
from aioproducer.broker.log.segment import CLEANED_SUFFIX, LOG_SUFFIX, SWAP_SUFFIX, Segment, remove_files
from aioproducer.broker.log.storage import REMOVED_SUFFIX, Storage

logger = logging.getLogger(__name__)

_TEMPORARY_SUFFIX = ".tmp"


class Swap:
    """A swap from its second step on. Readers use the cleaned segment already."""

    def __init__(self, cleaned: Segment, replaced: Sequence[Segment], remove_snapshot: Callable[[int], None]) -> None:
        """Rename the files to ``.swap``.

        Args:
            remove_snapshot: deletes the producer snapshot at the base offset of a segment that is gone.

        Raises:
            OSError: the disk did not rename a file.
        """
        self._cleaned = cleaned
        self._replaced = list(reversed(replaced))
        self._remove_snapshot = remove_snapshot
        cleaned.rename(SWAP_SUFFIX)

    def step(self) -> bool:
        """Delete an old segment, or give the files their final names at last. Return whether more is to be done.

        Raises:
            OSError: the disk did not do it.
        """
        if self._replaced:
            segment = self._replaced.pop()
            segment.remove()
            if segment.base_offset != self._cleaned.base_offset:
                self._remove_snapshot(segment.base_offset)
            return True
        self._cleaned.rename("")
        return False


def clean_up(storage: Storage, config: LogConfig, now_ms: int) -> None:
    """Delete what an unclean end left in the folder of a log, and finish a swap that had begun.

    Raises:
        KafkaStorageError: a ``.swap`` file is damaged.
        OSError: the disk failed.
    """
    names = storage.files()
    cleaned = [int(name.partition(".")[0]) for name in names if name.endswith(CLEANED_SUFFIX)]
    for name in names:
        if name.endswith((REMOVED_SUFFIX, CLEANED_SUFFIX, _TEMPORARY_SUFFIX)):
            storage.remove(name)
    swaps = [name for name in names if name.endswith(SWAP_SUFFIX)]
    # Beside files that were not renamed yet: the old segments are all there.
    for name in [name for name in swaps if cleaned and int(name.partition(".")[0]) >= min(cleaned)]:
        swaps.remove(name)
        storage.remove(name)
    for name in swaps:
        if name.endswith(LOG_SUFFIX + SWAP_SUFFIX):
            _remove_replaced(storage, names, int(name.partition(".")[0]), config, now_ms)
    for name in sorted(swaps):
        logger.info("%s: the cleaned file %s gets its final name", storage.description, name)
        storage.rename(name, name.removesuffix(SWAP_SUFFIX))


def _remove_replaced(storage: Storage, names: Sequence[str], base: int, config: LogConfig, now_ms: int) -> None:
    """Delete the segments that the ``.swap`` segment at ``base`` replaces."""
    cleaned = Segment(storage, base, config, now_ms, 0, file_suffix=SWAP_SUFFIX)
    end = max(base + 1, cleaned.next_offset())
    cleaned.close()
    for name in names:
        if name.endswith(LOG_SUFFIX) and base <= int(name.removesuffix(LOG_SUFFIX)) < end:
            remove_files(storage, int(name.removesuffix(LOG_SUFFIX)))
