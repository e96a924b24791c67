"""The controller's memory: an append-only file of JSON lines, one line an event.

A line is ``{"crc":<CRC-32 of the changes' text>,"changes":[...]}``, the first one ``{"version":1,"cluster_id":"..."}``.
An event is handed to the operating system before anybody is told of it, so that it outlives the process. A last line
that was only half written is cut; anything else that cannot be read is refused, because later lines build on it.
"""

from __future__ import annotations

import json
import logging
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from aioproducer.broker.controller.changes import Change, ChangeLine, apply, from_json, snapshot, to_json
from aioproducer.broker.image import ClusterImage
from aioproducer.errors import KafkaError, KafkaStorageError

if TYPE_CHECKING:
    from aioproducer.broker.log.storage import LogFile, Storage

logger = logging.getLogger(__name__)

FILE_NAME = "controller.journal"
_VERSION = 1
_COMPACT = (",", ":")


class Journal:
    """Events in, events out."""

    def __init__(self, storage: Storage) -> None:
        """``storage`` is the cluster's folder, which this process alone uses (``Storage.lock``)."""
        self._storage = storage
        self._file: LogFile | None = None
        self._name = f"{storage.description}/{FILE_NAME}"

    def load(self, new_cluster_id: str) -> ClusterImage:
        """The image as of the last event; an empty one of ``new_cluster_id`` where nothing was ever written.

        Raises:
            KafkaStorageError: a line other than the last cannot be read.
            OSError: the file cannot be.
        """
        lines = (self._storage.read(FILE_NAME) or b"").split(b"\n")
        # Every whole line ends with a newline: what follows the last one is a line whose writer did not get to its end.
        torn = lines.pop()
        if torn:
            logger.warning(
                "%s ends in %d bytes of an event that was not wholly written; they are cut off. Nobody was told of "
                "that event.",
                self._name,
                len(torn),
            )
            self._storage.replace(FILE_NAME, b"".join(line + b"\n" for line in lines), sync=True)
        if not lines:
            return ClusterImage(cluster_id=new_cluster_id)
        image = ClusterImage(cluster_id=self._cluster_id(lines[0]))
        for number, line in enumerate(lines[1:], start=2):
            try:
                apply(image, _changes(line))
            except (KafkaError, LookupError, TypeError, ValueError) as error:
                raise self._corrupt(number, error) from error
        return image

    def append(self, changes: Sequence[Change]) -> None:
        """Write an event.

        Raises:
            KafkaStorageError: it could not be written, and is not there.
        """
        try:
            if self._file is None:
                self._file = self._storage.open(FILE_NAME)
            self._file.append([_line(changes)])
        except OSError as error:
            raise KafkaStorageError(f"The controller's journal cannot be written ({self._name}): {error}") from error

    def compact(self, image: ClusterImage) -> None:
        """Have the journal say how things are instead of how they came about.

        Raises:
            OSError: it could not be written; what was there still is.
        """
        head = json.dumps({"version": _VERSION, "cluster_id": image.cluster_id}, separators=_COMPACT)
        self.close()
        self._storage.replace(FILE_NAME, head.encode() + b"\n" + _line(snapshot(image)), sync=True)

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _cluster_id(self, line: bytes) -> str:
        try:
            head = json.loads(line)
            version, cluster_id = head["version"], head["cluster_id"]
            if not isinstance(cluster_id, str):
                raise TypeError(f"the cluster id is {cluster_id!r}")
        except (KeyError, TypeError, ValueError) as error:
            raise self._corrupt(1, error) from error
        if version != _VERSION:
            raise KafkaStorageError(
                f"{self._name} is of version {version!r}; this version of aioproducer reads {_VERSION}"
            )
        return cluster_id

    def _corrupt(self, number: int, error: Exception) -> KafkaStorageError:
        return KafkaStorageError(
            f"{self._name}: line {number} is corrupt ({type(error).__name__}: {error}). Topics and leaders cannot "
            "be known; restore the file from a copy, or remove the cluster's folder to begin anew."
        )


def _line(changes: Iterable[Change]) -> bytes:
    text = json.dumps([to_json(change) for change in changes], separators=_COMPACT)
    return f'{{"crc":{zlib.crc32(text.encode())},"changes":{text}}}\n'.encode()


def _changes(line: bytes) -> Iterator[Change]:
    event = json.loads(line)
    text = json.dumps(event["changes"], separators=_COMPACT)
    if zlib.crc32(text.encode()) != event["crc"]:
        raise ValueError("the checksum does not match")
    changes: list[ChangeLine] = event["changes"]
    return map(from_json, changes)
