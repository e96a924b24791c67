"""Kafka's checkpoint files: a version, how many lines follow, and one line an entry (``CheckpointFile``)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from aioproducer.broker.log.storage import Storage
from aioproducer.errors import KafkaError

_VERSION = 0


class CorruptFileError(KafkaError):
    """A small file of the log directory is not what it should be."""


def read_checkpoint(storage: Storage, name: str) -> list[list[str]]:
    """The entries of a checkpoint file, each split at its blanks; none where the file is missing or empty.

    Raises:
        CorruptFileError: the file is something else.
    """
    data = storage.read(name)
    if not data:
        return []
    where = f"the checkpoint file {storage.description}/{name}"
    try:
        lines = data.decode().splitlines()
        version, count = int(lines[0]), int(lines[1]) if len(lines) > 1 else 0
    except ValueError:
        raise CorruptFileError(f"{where} does not begin with a version and a count") from None
    if version != _VERSION:
        raise CorruptFileError(f"{where} is of version {version}; version {_VERSION} can be read")
    if len(lines) - 2 != count and len(lines) > 1:
        raise CorruptFileError(f"{where} states {count} entries, where {len(lines) - 2} are")
    return [line.split() for line in lines[2:]]


def write_checkpoint(storage: Storage, name: str, entries: Iterable[Iterable[object]], *, sync: bool = False) -> None:
    """Make ``entries`` the whole of a checkpoint file.

    Raises:
        OSError: it could not be written; the file is as it was.
    """
    lines = [" ".join(map(str, entry)) for entry in entries]
    storage.replace(name, "".join(f"{line}\n" for line in (_VERSION, len(lines), *lines)).encode(), sync=sync)


def read_offsets(storage: Storage, name: str) -> dict[tuple[str, int], int]:
    """The offset of each partition in a checkpoint file (``OffsetCheckpointFile``).

    Raises:
        CorruptFileError: the file is something else.
    """
    offsets = {}
    for entry in read_checkpoint(storage, name):
        try:
            topic, partition, offset = entry
            offsets[topic, int(partition)] = int(offset)
        except ValueError:
            raise CorruptFileError(
                f"the checkpoint file {storage.description}/{name} has a line {' '.join(entry)!r}, "
                f"which is no topic, partition and offset"
            ) from None
    return offsets


def write_offsets(storage: Storage, name: str, offsets: Mapping[tuple[str, int], int], *, sync: bool = False) -> None:
    """Make ``offsets`` the whole of a checkpoint file.

    Raises:
        OSError: it could not be written; the file is as it was.
    """
    entries = [(topic, partition, offset) for (topic, partition), offset in sorted(offsets.items())]
    write_checkpoint(storage, name, entries, sync=sync)
