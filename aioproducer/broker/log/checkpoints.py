"""Kafka's checkpoint files: a version, the number of entries, and one line for each (``CheckpointFile``)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from aioproducer.broker.log.storage import Storage
from aioproducer.errors import KafkaError

_VERSION = 0


class CorruptFileError(KafkaError):
    """The content of a small file in the log directory is invalid."""


def read_checkpoint(storage: Storage, name: str) -> list[list[str]]:
    """Return the entries of a checkpoint file, each split at its blanks; none if the file is missing or empty.

    Raises:
        CorruptFileError: the file has another form.
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
    """Replace the content of a checkpoint file by ``entries``.

    Raises:
        OSError: it could not be written; the file is unchanged.
    """
    lines = [" ".join(map(str, entry)) for entry in entries]
    storage.replace(name, "".join(f"{line}\n" for line in (_VERSION, len(lines), *lines)).encode(), sync=sync)


def read_offsets(storage: Storage, name: str) -> dict[tuple[str, int], int]:
    """Return the offset of each partition in a checkpoint file (``OffsetCheckpointFile``).

    Raises:
        CorruptFileError: the file has another form.
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
    """Replace the content of a checkpoint file by ``offsets``.

    Raises:
        OSError: it could not be written; the file is unchanged.
    """
    entries = [(topic, partition, offset) for (topic, partition), offset in sorted(offsets.items())]
    write_checkpoint(storage, name, entries, sync=sync)
