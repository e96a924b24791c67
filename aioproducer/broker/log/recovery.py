"""Opening a log from its folder, with repairs after an unclean end (``LogLoader``)."""

from __future__ import annotations

import logging
from typing import NamedTuple

from aioproducer.broker.log.checkpoints import CorruptFileError
from aioproducer.broker.log.config import LogConfig
from aioproducer.broker.log.leader_epochs import LeaderEpochCache
from aioproducer.broker.log.producer_state import ProducerStateManager
from aioproducer.broker.log.segment import LOG_SUFFIX, SUFFIXES, Segment, remove_files
from aioproducer.broker.log.storage import Storage
from aioproducer.broker.log.swaps import clean_up
from aioproducer.broker.log.validation import BatchHeader

logger = logging.getLogger(__name__)


class LoadedLog(NamedTuple):
    """The segments and offsets of an opened log."""

    segments: list[Segment]
    log_start_offset: int
    log_end_offset: int
    recovery_point: int
    recovered_from: int | None
    """The start of the first segment whose indexes were rebuilt."""


def load_segments(
    storage: Storage,
    config: LogConfig,
    epochs: LeaderEpochCache,
    now_ms: int,
    *,
    clean: bool,
    recovery_point: int,
    log_start_offset: int,
) -> LoadedLog:
    """Return the segments in ``storage``, after repairs of an unclean end.

    A swap of cleaned segments is finished first. Then every segment with offsets from ``recovery_point`` on is read
    completely, and cut at the first batch that is incomplete, has a wrong checksum or a smaller offset than the one
    before. Segments behind a cut are deleted. The indexes of these segments are rebuilt, and also those of any segment
    with missing or invalid index files. Leader epochs are rebuilt if their file cannot be read.
    ``rebuild_producer_state`` rebuilds the index of aborted transactions. After a clean end only the headers behind the
    last index entry are read.
    """
    clean_up(storage, config, now_ms)
    names = set(storage.files())
    bases = sorted(int(name.removesuffix(LOG_SUFFIX)) for name in names if name.endswith(LOG_SUFFIX))
    for suffix in SUFFIXES:
        for name in names:
            if suffix != LOG_SUFFIX and name.endswith(suffix) and name.removesuffix(suffix) + LOG_SUFFIX not in names:
                storage.remove(name)
    epochs_are_lost = False
    try:
        epochs.load()
    except CorruptFileError as corrupt:
        logger.warning("%s; it is rebuilt from the log", corrupt)
        epochs_are_lost = True

    def see(header: BatchHeader) -> None:
        latest = epochs.latest_epoch
        if header.partition_leader_epoch >= 0 and (latest is None or header.partition_leader_epoch > latest):
            epochs.note(header.partition_leader_epoch, header.base_offset)

    segments: list[Segment] = []
    recovered_from: int | None = None
    next_offset = 0
    for index, base in enumerate(bases):
        segment = Segment(storage, base, config, now_ms, 0)
        if base < next_offset and not segment.size:
            logger.warning(
                "%s: the empty segment %d begins within the previous one, and is deleted", storage.description, base
            )
            segment.remove()
            continue
        is_last = index == len(bases) - 1
        cut = 0
        is_unsafe = not clean and (is_last or bases[index + 1] > recovery_point)
        if is_unsafe or not segment.load():
            if not is_unsafe:
                logger.warning("%s: the indexes of segment %d are rebuilt", storage.description, base)
            cut = segment.recover(next_offset, see)
            recovered_from = base if recovered_from is None else recovered_from
        elif epochs_are_lost:
            for located in segment.batches():
                see(located.header)
        segments.append(segment)
        next_offset = segment.next_offset()
        if cut:
            logger.warning(
                "%s: cut %d bytes off segment %d, which ends at %d", storage.description, cut, base, next_offset
            )
            for later in reversed(bases[index + 1 :]):
                remove_files(storage, later)
            break
    fitted = _fit(storage, config, epochs, now_ms, segments, next_offset, recovery_point, log_start_offset, clean)
    return fitted if fitted.segments is not segments else fitted._replace(recovered_from=recovered_from)


def _fit(
    storage: Storage,
    config: LogConfig,
    epochs: LeaderEpochCache,
    now_ms: int,
    segments: list[Segment],
    log_end_offset: int,
    recovery_point: int,
    log_start_offset: int,
    clean: bool,
) -> LoadedLog:
    """Make the log's start, end and epochs consistent."""
    if segments and log_end_offset < log_start_offset:
        # The end was lost, and the rest had been deleted by the log's start: nothing is left.
        for segment in reversed(segments):
            segment.remove()
        segments = []
    if not segments:
        segments = [Segment(storage, log_start_offset, config, now_ms, 0)]
        segments[0].save_indexes()
        log_end_offset = log_start_offset
    log_start_offset = max(log_start_offset, segments[0].base_offset)
    epochs.truncate_from_end(log_end_offset)
    epochs.truncate_from_start(log_start_offset)
    epochs.save()
    recovery_point = log_end_offset if clean else min(recovery_point, log_end_offset)
    return LoadedLog(segments, log_start_offset, log_end_offset, recovery_point, None)


def rebuild_producer_state(
    state: ProducerStateManager,
    segments: list[Segment],
    log_end_offset: int,
    now_ms: int,
    expiration_ms: int,
    *,
    recovered_from: int | None = None,
) -> None:
    """Rebuild ``state`` from the newest snapshot and the batches behind it.

    This also rebuilds the indexes of aborted transactions, from the segment at ``recovered_from`` on.
    """
    state.load(segments[0].base_offset, log_end_offset, now_ms, expiration_ms, at_most=recovered_from)
    start = state.map_end_offset
    for index, segment in enumerate(segments):
        if index + 1 < len(segments) and segments[index + 1].base_offset <= start:
            continue
        is_recovered = recovered_from is not None and segment.base_offset >= recovered_from
        if is_recovered:
            segment.transaction_index.clear()
        for located in segment.batches(segment.offset_index.lookup(start).position):
            header = located.header
            if header.last_offset >= start and header.producer_id >= 0:
                aborted = state.update(header, header.last_offset, segment.marker(located))
                if aborted is not None and is_recovered:
                    segment.transaction_index.append(aborted)
        if is_recovered:
            segment.transaction_index.save()
    state.map_end_offset = log_end_offset
    state.remove_expired(now_ms, expiration_ms)
