"""The controller's journal: an append-only file of JSON lines, one line for each event.

A line is ``{"crc":<CRC-32 of the changes' text>,"changes":[...]}``, the first one ``{"version":1,"cluster_id":"..."}``.
An event is handed to the operating system before any node is notified, so that it survives the process. An incomplete
last line is cut off. Any other line that cannot be read is an error, because later lines depend on it.
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
    """Writes events, and builds the image from them at the start."""

    def __init__(self, storage: Storage) -> None:
        """``storage`` is the cluster's folder, which no other process uses (``Storage.lock``)."""
        self._storage = storage
        self._file: LogFile | None = None
        self._name = f"{storage.description}/{FILE_NAME}"

    def load(self, new_cluster_id: str) -> ClusterImage:
        """Return the image after the last event; without a journal an empty image with ``new_cluster_id``.

        Raises:
            KafkaStorageError: a line other than the last cannot be read.
            OSError: the file cannot be read.
        """
        lines = (self._storage.read(FILE_NAME) or b"").split(b"\n")
        # Every complete line ends with a newline, so bytes behind the last one are an incomplete line.
        torn = lines.pop()
        if torn:
            logger.warning(
                "%s ends with %d bytes of an incomplete event, which are cut off. No node was notified of that event.",
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
            KafkaStorageError: the event could not be written, and is not in the file.
        """
        try:
            if self._file is None:
                self._file = self._storage.open(FILE_NAME)
            self._file.append([_line(changes)])
        except OSError as error:
            raise KafkaStorageError(f"The controller's journal cannot be written ({self._name}): {error}") from error

    def compact(self, image: ClusterImage) -> None:
        """Replace all events by those that produce ``image`` directly.

        Raises:
            OSError: the journal could not be written; it is unchanged.
        """
        head = json.dumps({"version": _VERSION, "cluster_id": image.cluster_id}, separators=_COMPACT)
        self.close()
        self._storage.replace(FILE_NAME, head.encode() + b"\n" + _line(snapshot(image)), sync=True)

    def close(self) -> None:
        """Close the file."""
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
            f"{self._name}: line {number} is corrupt ({type(error).__name__}: {error}), so topics and leaders are "
            "unknown. Restore the file from a copy, or delete the cluster's folder to start with an empty cluster."
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
