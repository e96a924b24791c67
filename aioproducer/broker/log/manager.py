"""All logs of one node: its data directory (``LogManager``)."""

from __future__ import annotations

import base64
import json
import logging
import re
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from aioproducer.broker.log.checkpoints import CorruptFileError, read_offsets, write_offsets
from aioproducer.broker.log.config import LogConfig
from aioproducer.broker.log.log import Log
from aioproducer.broker.log.storage import Storage
from aioproducer.errors import InconsistentClusterIdError, InconsistentTopicIdError, KafkaError, KafkaStorageError

logger = logging.getLogger(__name__)

RECOVERY_POINT_CHECKPOINT = "recovery-point-offset-checkpoint"
LOG_START_CHECKPOINT = "log-start-offset-checkpoint"
HIGH_WATERMARK_CHECKPOINT = "replication-offset-checkpoint"
CLEANER_CHECKPOINT = "cleaner-offset-checkpoint"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
META_PROPERTIES = "meta.properties"
PARTITION_METADATA = "partition.metadata"
DELETED_SUFFIX = "-delete"

_FOLDER = re.compile(r"(?P<topic>.+)-(?P<index>\d+)")
_MAX_FOLDER_NAME = 255


class LogManager:
    """The folders ``topic-index`` of one node, with the files for their node, topic ids and offsets.

    Call :meth:`load` first, and :meth:`close` at the end. Not thread-safe.
    """

    def __init__(
        self,
        storage: Storage,
        *,
        node_id: int,
        cluster_id: str,
        config_for: Callable[[str], LogConfig],
        wall_ms: Callable[[], int],
    ) -> None:
        """Prepare the logs of a node.

        Args:
            storage: the data directory.
            config_for: the configuration of a topic, by name.
            wall_ms: milliseconds since 1970.
        """
        self._storage = storage
        self._node_id = node_id
        self._cluster_id = cluster_id
        self._config_for = config_for
        self._wall_ms = wall_ms
        self.logs: dict[tuple[str, int], Log] = {}
        self._topic_ids: dict[tuple[str, int], bytes] = {}
        self._high_watermarks: dict[tuple[str, int], int] = {}
        self._written_cleaned_to: dict[tuple[str, int], int] = {}
        """What the checkpoint file of the cleaner contains."""
        self._obsolete: set[tuple[str, int]] = set()
        """Logs that are gone, and that the checkpoint files may still contain."""
        self._deleted: list[str] = []
        """Folders of deleted logs that still exist, under their new names."""
        self._is_open = False

    def load(self) -> None:
        """Lock the directory, and open every log in it. After an unclean end, unflushed records are checked.

        Raises:
            InconsistentClusterIdError: the directory belongs to another cluster.
            KafkaStorageError: another node or process uses the directory, or the disk failed.
        """
        with self._disk("open"):
            self._storage.make()
            self._storage.lock()
            try:
                self._load()
            except BaseException:
                self.logs.clear()
                self._storage.unlock()
                raise
        self._is_open = True

    def _load(self) -> None:
        self._check_meta_properties()
        clean = self._storage.read(CLEAN_SHUTDOWN) is not None
        # Deleted before any log is opened: from now on an end is unclean unless ``close`` marks it as clean.
        self._storage.remove(CLEAN_SHUTDOWN)
        recovery_points = self._offsets(RECOVERY_POINT_CHECKPOINT, "all logs are checked from their start")
        log_starts = self._offsets(LOG_START_CHECKPOINT, "logs start where their first segment does")
        self._high_watermarks = self._offsets(HIGH_WATERMARK_CHECKPOINT, "high watermarks begin at the logs' start")
        cleaned_to = self._offsets(CLEANER_CHECKPOINT, "compacted logs are cleaned from their start")
        self._written_cleaned_to = cleaned_to
        for name in self._storage.folders():
            found = _FOLDER.fullmatch(name)
            if name.endswith(DELETED_SUFFIX):
                self._storage.remove_folder(name)
            elif found is not None:
                key = found["topic"], int(found["index"])
                topic_id = self._read_partition_metadata(name)
                if topic_id is not None:
                    self._topic_ids[key] = topic_id
                log = self._open(key, clean, recovery_points.get(key, 0), log_starts.get(key, 0))
                log.cleaned_to = cleaned_to.get(key)
        for offsets in (recovery_points, log_starts, self._high_watermarks, cleaned_to):
            self._obsolete |= offsets.keys() - self.logs.keys()
        for key in self._obsolete:
            self._high_watermarks.pop(key, None)

    def _open(self, key: tuple[str, int], clean: bool, recovery_point: int, log_start_offset: int) -> Log:
        topic, index = key
        log = Log.open(
            self._storage.sub(_folder(topic, index)),
            self._config_for(topic),
            topic=topic,
            partition=index,
            wall_ms=self._wall_ms,
            clean=clean,
            recovery_point=recovery_point,
            log_start_offset=log_start_offset,
        )
        log.before_truncation = self._checkpoint_recovery_points
        self.logs[key] = log
        return log

    def _offsets(self, name: str, otherwise: str) -> dict[tuple[str, int], int]:
        try:
            return read_offsets(self._storage, name)
        except CorruptFileError as corrupt:
            logger.warning("%s; %s", corrupt, otherwise)
            return {}

    def topic_id_of(self, topic: str, index: int) -> bytes | None:
        """Return the topic id in the partition's folder; ``None`` without a folder or id."""
        return self._topic_ids.get((topic, index))

    def get_or_create(self, topic: str, index: int, topic_id: bytes) -> Log:
        """Return the partition's log; create it if there is none.

        Raises:
            InconsistentTopicIdError: the log belongs to another topic of that name; delete it first.
            KafkaStorageError: the disk failed.
        """
        self._ensure_open()
        key = topic, index
        known = self._topic_ids.get(key)
        if known is not None and known != topic_id:
            raise InconsistentTopicIdError(
                f"the log of {topic}-{index} belongs to topic id {_base64(known)}, not {_base64(topic_id)}"
            )
        if key in self._obsolete:
            # The offsets of the log that is gone would cut or hide records of the new one at the next start.
            self.checkpoint({}, sync=True)
        with self._disk("create a log in"):
            if known is None:
                folder = self._storage.sub(_folder(topic, index))
                folder.make()
                text = f"version: 0\ntopic_id: {_base64(topic_id)}"
                folder.replace(PARTITION_METADATA, text.encode(), sync=False)
                self._topic_ids[key] = topic_id
            log = self.logs.get(key)
            return self._open(key, True, 0, 0) if log is None else log

    def delete(self, topic: str, index: int) -> None:
        """Delete a partition's log. Its folder is renamed first, so that a partly deleted log is never opened.

        ``give_back`` removes the folder, or the next ``load``, because removing many folders takes long.

        Raises:
            KafkaStorageError: the disk failed; the next start deletes the rest.
        """
        self._ensure_open()
        key = topic, index
        log = self.logs.pop(key, None)
        self._topic_ids.pop(key, None)
        self._high_watermarks.pop(key, None)
        if log is None:
            return
        self._obsolete.add(key)
        log.before_truncation = None
        log.close(clean=False)
        name = _folder(topic, index)
        suffix = f".{uuid.uuid4().hex}{DELETED_SUFFIX}"
        with self._disk("delete a log in"):
            deleted = name[: _MAX_FOLDER_NAME - len(suffix)] + suffix
            self._storage.rename_folder(name, deleted)
        self._deleted.append(deleted)

    def give_back(self, size: int) -> bool:
        """Remove a folder of a deleted log, or free about ``size`` bytes of memory; return whether more is left.

        Raises:
            KafkaStorageError: the disk failed; the next start deletes the rest.
        """
        if not self._is_open:
            return False
        if self._deleted:
            with self._disk("delete a log in"):
                self._storage.remove_folder(self._deleted.pop())
            return True
        return self._storage.give_back(size)

    def high_watermark(self, topic: str, index: int) -> int:
        """Return the last checkpointed high watermark, also of an earlier process; without one the log's start."""
        log = self.logs.get((topic, index))
        start = 0 if log is None else log.log_start_offset
        return max(start, self._high_watermarks.get((topic, index), 0))

    def checkpoint(self, high_watermarks: Mapping[tuple[str, int], int], *, sync: bool = False) -> None:
        """Write recovery points, log starts and ``high_watermarks``.

        Args:
            high_watermarks: the known ones; others stay as they are.
            sync: make the files survive a power loss. Without them a start only takes longer.

        Raises:
            KafkaStorageError: it could not be written; the files are as they were, or newer.
        """
        self._ensure_open()
        self._high_watermarks.update({key: offset for key, offset in high_watermarks.items() if key in self.logs})
        with self._disk("write the checkpoints of"):
            self._write_recovery_points(sync)
            starts = {
                key: log.log_start_offset
                for key, log in self.logs.items()
                if log.log_start_offset > log.segment_base_offsets[0]
            }
            write_offsets(self._storage, LOG_START_CHECKPOINT, starts, sync=sync)
            write_offsets(self._storage, HIGH_WATERMARK_CHECKPOINT, self._high_watermarks, sync=sync)
        self.checkpoint_cleaner(sync=sync)
        self._obsolete.clear()

    def checkpoint_cleaner(self, *, sync: bool = False) -> None:
        """Write up to which offset each log was compacted, if that has changed.

        Raises:
            KafkaStorageError: it could not be written; the file is as it was.
        """
        self._ensure_open()
        cleaned_to = {key: log.cleaned_to for key, log in self.logs.items() if log.cleaned_to is not None}
        if cleaned_to != self._written_cleaned_to:
            with self._disk("write the checkpoints of"):
                write_offsets(self._storage, CLEANER_CHECKPOINT, cleaned_to, sync=sync)
            self._written_cleaned_to = cleaned_to

    def _write_recovery_points(self, sync: bool) -> None:
        points = {key: log.recovery_point for key, log in self.logs.items()}
        write_offsets(self._storage, RECOVERY_POINT_CHECKPOINT, points, sync=sync)

    def _checkpoint_recovery_points(self, _: int) -> None:
        with self._disk("write the checkpoints of"):
            self._write_recovery_points(sync=True)

    def close(self, clean: bool, high_watermarks: Mapping[tuple[str, int], int] | None = None) -> None:
        """Close all logs and unlock the directory.

        With ``clean`` all logs are flushed and the end is marked as clean, so the next :meth:`load` checks nothing. The
        mark is missing if a log cannot be flushed. Without ``clean`` nothing is written, as if the process had died.

        Raises:
            KafkaStorageError: the first error of the disk, after all logs were closed.
        """
        if not self._is_open:
            return
        trouble: KafkaError | None = None
        for log in self.logs.values():
            try:
                log.close(clean)
            except KafkaStorageError as error:
                logger.error("%s", error)
                trouble = trouble or error
        try:
            if clean:
                self.checkpoint(high_watermarks or {}, sync=True)
                if trouble is None:
                    with self._disk("mark the clean shutdown of"):
                        mark = json.dumps({"version": 0, "brokerEpoch": -1}).encode()
                        self._storage.replace(CLEAN_SHUTDOWN, mark, sync=True)
        finally:
            self._is_open = False
            self._storage.unlock()
        if trouble is not None:
            raise trouble

    def _ensure_open(self) -> None:
        if not self._is_open:
            raise KafkaStorageError(f"the data directory {self._storage.description} is closed")

    # The small files

    def _check_meta_properties(self) -> None:
        data = self._storage.read(META_PROPERTIES)
        where = f"{self._storage.description}/{META_PROPERTIES}"
        if not data:
            lines = (
                "#",
                "version=1",
                f"cluster.id={self._cluster_id}",
                f"node.id={self._node_id}",
                f"directory.id={_base64(uuid.uuid4().bytes)}",
            )
            self._storage.replace(META_PROPERTIES, "".join(f"{line}\n" for line in lines).encode(), sync=True)
            return
        found = {}
        for line in data.decode(errors="replace").splitlines():
            key, separator, value = line.partition("=")
            if separator and not line.startswith("#"):
                found[key.strip()] = value.strip()
        if found.get("version") != "1":
            raise KafkaStorageError(f"{where} is not of version 1: {data[:100]!r}")
        if found.get("cluster.id") != self._cluster_id:
            raise InconsistentClusterIdError(
                f"the directory belongs to cluster {found.get('cluster.id')!r}, and this broker to "
                f"{self._cluster_id!r} ({where}). Use an empty directory, or the cluster id of the old cluster"
            )
        if found.get("node.id") != str(self._node_id):
            raise KafkaStorageError(
                f"the directory belongs to node {found.get('node.id')}, and this is node {self._node_id} ({where}). "
                f"Use a separate directory for each node"
            )

    def _read_partition_metadata(self, folder: str) -> bytes | None:
        data = self._storage.sub(folder).read(PARTITION_METADATA)
        if not data:
            return None
        found = re.fullmatch(r"version: 0\ntopic_id: ([\w-]{22})\n?", data.decode(errors="replace"))
        if found is None:
            raise KafkaStorageError(
                f"{self._storage.description}/{folder}/{PARTITION_METADATA} has no topic id: {data[:100]!r}"
            )
        return base64.urlsafe_b64decode(found[1] + "==")

    @contextmanager
    def _disk(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise KafkaStorageError(f"cannot {what} the data directory {self._storage.description}: {error}") from error


def _folder(topic: str, index: int) -> str:
    return f"{topic}-{index}"


def _base64(data: bytes) -> str:
    """Return a UUID in Kafka's text form."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
