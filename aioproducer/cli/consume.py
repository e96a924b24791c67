"""``aioproducer consume``: a topic's records as lines, CSV, JSON lines, Parquet or Arrow."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import BinaryIO, TypeVar, cast

import click

from aioproducer._common.diagnosis import nearest
from aioproducer._common.texts import are
from aioproducer.admin import ISOLATION_LEVELS, Admin, IsolationLevel, OffsetSpec
from aioproducer.cli.existing import describe_topic
from aioproducer.cli.exits import EXPLANATION, SUCCEEDED, CommandError, CommandUsageError
from aioproducer.cli.group_reading import GroupReading, without_consumer_keys
from aioproducer.cli.options import ClusterOptions, cluster_options, diagnosis_options
from aioproducer.cli.positions import parse_position
from aioproducer.cli.progress import Reporter, human_counted
from aioproducer.cli.reading import FORMATS, guess_format
from aioproducer.cli.running import Interruption, run
from aioproducer.cli.worker import WholeWrites, Worker
from aioproducer.cli.writing import DEFAULT_FIELDS, FIELDS, Writer, writer_for
from aioproducer.consumer import ConsumerRecord, Position, Reader
from aioproducer.errors import KafkaError
from aioproducer.record import TopicPartition

T = TypeVar("T")

STDOUT = "-"
# What --from becomes for a group.
_RESETS = {"beginning": "earliest", "end": "latest"}
# The formats that are not written before their end.
_GATHERED = ("parquet", "arrow")
# How long an interrupted command may take to write its last bytes, in seconds.
LONGEST_FINISH = 1.0


@dataclass(frozen=True, slots=True)
class Job:
    """What is to be read, and where to."""

    topic: str
    partitions: tuple[int, ...] | None
    start: Position
    until: Position | None
    follow: bool
    max_records: int | None
    isolation_level: IsolationLevel
    output: str
    format: str
    fields: tuple[str, ...]
    separator: bytes
    config: dict[str, object]
    timeout: float
    group: str | None


@click.command("consume", epilog=EXPLANATION)
@click.argument("topic")
@click.option("-p", "--partition", "partitions", type=click.IntRange(min=0), multiple=True, help="Read only this one.")
@click.option("--from", "start", default="beginning", show_default=True, metavar="POSITION", help="First position.")
@click.option("--until", metavar="POSITION", help="Stop before this position.  [default: the current end]")
@click.option("-n", "--max-records", type=click.IntRange(min=1), metavar="N", help="Stop after N records.")
@click.option("--follow", is_flag=True, help="Wait for new records at the end.")
@click.option(
    "--group",
    metavar="NAME",
    help="Read as a member of this consumer group, from its committed offsets, and commit what was written.",
)
@click.option(
    "--isolation-level",
    type=click.Choice(tuple(ISOLATION_LEVELS)),
    default="read_uncommitted",
    show_default=True,
    help="read_committed: leave out records of open and aborted transactions.",
)
@click.option(
    "-f",
    "--format",
    "format_",
    type=click.Choice(FORMATS),
    help="Format of the output.  [default: by the name of FILE, else lines]",
)
@click.option("-o", "--output", type=click.Path(), default=STDOUT, metavar="FILE", help="Output.  [default: stdout]")
@click.option(
    "--fields", metavar="NAME,...", help=f"Fields, of {', '.join(FIELDS)}.  [default: the value in lines, else all]"
)
@click.option("--key", is_flag=True, help="In lines, write the key before the value.")
@click.option("--separator", default="\\t", show_default=True, metavar="TEXT", help="In lines, text between fields.")
@click.option("-q", "--quiet", is_flag=True, help="Show no progress.")
@cluster_options
@diagnosis_options
def command(
    topic: str,
    partitions: tuple[int, ...],
    start: str,
    until: str | None,
    max_records: int | None,
    follow: bool,
    group: str | None,
    isolation_level: IsolationLevel,
    format_: str | None,
    output: str,
    fields: str | None,
    key: bool,
    separator: str,
    quiet: bool,
    cluster: ClusterOptions,
) -> int:
    """Read the records of TOPIC, all of them or as a member of a consumer group.

    With --group the members share the partitions. --from is where to begin in a partition without a committed offset,
    beginning or end. Records are committed after they were written: after a crash some are written again, none is left
    out.

    A POSITION is beginning, end, an offset, @MILLISECONDS since 1970, or a time as 2026-01-31T12:00:00Z. Records of a
    partition are in order. 'produce --key key --value value --headers headers --timestamp timestamp' can send JSON
    lines with all fields again.

    \b
    Examples:
      aioproducer consume clicks | head
      aioproducer consume clicks --follow --from end --key
      aioproducer consume clicks --from 2026-01-31T12:00:00Z --format jsonl
      aioproducer consume clicks -o clicks.parquet
      aioproducer consume clicks --group billing --follow
    """
    if group is not None:
        _check_group_options(group, partitions, start, until)
    chosen = format_ or guess_format(output)
    if output == STDOUT and chosen in ("parquet", "arrow") and sys.stdout.isatty():
        raise CommandUsageError(f"{chosen} cannot be written to a terminal: choose a file with --output")
    job = Job(
        topic,
        partitions or None,
        parse_position(start, "--from"),
        None if until is None else parse_position(until, "--until"),
        follow,
        max_records,
        isolation_level,
        output,
        chosen,
        _fields(fields, key, chosen),
        separator.replace("\\t", "\t").encode(),
        cluster.config(),
        cluster.timeout,
        group,
    )
    reporter = Reporter("consume", quiet=quiet or output == STDOUT)
    return run(lambda interruption: _consume(job, reporter, interruption))


def _check_group_options(group: str, partitions: tuple[int, ...], start: str, until: str | None) -> None:
    """
    Raises:
        CommandUsageError: options that a member of a group cannot have.
    """
    if not group.strip():
        raise CommandUsageError("--group takes the name of a consumer group, not an empty one")
    if partitions:
        raise CommandUsageError("--group assigns the partitions: remove --partition")
    if until is not None:
        raise CommandUsageError("--group reads to the current end, or on with --follow: remove --until")
    if start not in _RESETS:
        raise CommandUsageError(
            f"with --group, --from is beginning or end, for partitions without a committed offset; set others by "
            f"'aioproducer groups reset-offsets {group}'"
        )


def _fields(fields: str | None, key: bool, format_: str) -> tuple[str, ...]:
    """
    Raises:
        CommandUsageError: there is no such field.
    """
    if fields is None:
        if format_ != "lines":
            return DEFAULT_FIELDS
        return ("key", "value") if key else ("value",)
    names = tuple(name.strip() for name in fields.split(","))
    for name in names:
        if name not in FIELDS:
            hint = nearest(name, FIELDS)
            raise CommandUsageError(
                f"--fields: there is no {name!r}{f' ({hint})' if hint else ''}: use {', '.join(FIELDS)}"
            )
    return names


async def _stops(job: Job) -> dict[int, Position] | Position | None:
    """Where to end: at ``--until``, and without ``--follow`` no later than what is there now.

    Raises:
        CommandError: there is no such topic, or all that is wanted of it ends before ``--from``.
    """
    async with Admin.from_config(job.config, timeout=job.timeout) as admin:
        topic = await describe_topic(admin, job.topic, "'aioproducer topics list' shows which there are")
        if job.follow:
            return job.until
        numbers = [each.partition for each in topic.partitions]
        wanted = [partition for partition in job.partitions or numbers if partition in numbers]
        latest: dict[int, OffsetSpec] = dict.fromkeys(wanted, "latest")
        stops = ends = await admin.list_offsets(job.topic, latest)
        if job.isolation_level == "read_committed":
            stops = await admin.list_offsets(job.topic, latest, isolation_level=job.isolation_level)
        end = max(ends.values(), default=0)
        if isinstance(job.start, int) and stops and job.start > end:
            raise CommandError(
                f"--from {job.start} is beyond the end of topic {job.topic!r}, next offset {end}: use a lower offset, "
                "or omit --from to read all records"
            )
        if isinstance(job.until, int):
            stops = {partition: min(stop, job.until) for partition, stop in stops.items()}
        elif job.until is not None and job.until != "end":
            spec: OffsetSpec = "earliest" if isinstance(job.until, str) else job.until
            stops = await admin.list_offsets(
                job.topic, dict.fromkeys(wanted, spec), isolation_level=job.isolation_level
            )
        return cast("dict[int, Position]", stops)


class Output:
    """The file that is written, off the loop."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._worker = Worker()
        self.written = 0
        self._file: WholeWrites | None = None
        self._writer: Writer | None = None

    async def open(self) -> None:
        """Open the file.

        Raises:
            CommandError: it cannot be opened, or something that the format needs is not installed.
        """
        name = self._job.output
        try:
            descriptor = 1 if name == STDOUT else os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        except OSError as error:
            raise CommandError(f"{name} cannot be written: {error.strerror}") from error
        self._file = WholeWrites(descriptor, owned=name != STDOUT)
        file = cast("BinaryIO", self._file)
        job = self._job
        self._writer = await self._do(lambda: writer_for(job.format, file, job.fields, job.separator))

    async def write(self, records: list[ConsumerRecord]) -> None:
        """Write records; see ``Writer``."""
        writer = self._writer
        assert writer is not None
        await self._do(lambda: writer.write(records))
        self.written += len(records)

    async def finish(self) -> None:
        """Write the end, and close; once."""
        writer, file = self._writer, self._file
        self._writer = None
        if writer is not None and file is not None:
            await self._do(writer.finish)
            await self._do(file.close)

    def end(self) -> None:
        """Nothing more is written."""
        self._worker.end()

    async def _do(self, function: Callable[[], T]) -> T:
        try:
            return await self._worker.do(function)
        except BrokenPipeError:
            raise
        except OSError as error:
            name = "stdout" if self._job.output == STDOUT else self._job.output
            raise CommandError(f"{name} cannot be written: {error.strerror}") from error


async def _consume(job: Job, reporter: Reporter, interruption: Interruption) -> int:
    output = Output(job)
    try:
        if job.group is not None:
            finished = await _read_as_member(job, reporter, output, interruption)
        else:
            finished = await interruption.unless(_read(job, reporter, output))
        # A reader that takes nothing any more must not keep an interrupted command.
        await asyncio.wait_for(output.finish(), None if finished else LONGEST_FINISH)
    except TimeoutError as error:
        if interruption.signal is None or isinstance(error, KafkaError):
            raise
        return interruption.exit_code
    finally:
        output.end()
    if job.output != STDOUT:
        written = f"{human_counted(output.written, 'record')}"
        reporter.say(f"{written} {are(output.written)} in {job.output}")
    return interruption.exit_code if finished is None else SUCCEEDED


async def _read(job: Job, reporter: Reporter, output: Output) -> bool:
    """Write what there is to be read; True."""
    stops = await _stops(job)
    reader = Reader.from_config(
        job.config,
        job.topic,
        job.partitions,
        start=job.start,
        stop=stops,
        isolation_level=job.isolation_level,
        timeout=job.timeout,
    )
    async with reader:
        await output.open()
        async with reporter.progress(None, lambda: (output.written, 0)):
            async for records in reader.batches():
                if job.max_records is not None:
                    records = records[: job.max_records - output.written]
                await output.write(records)
                if output.written == job.max_records:
                    break
    return True


async def _read_as_member(job: Job, reporter: Reporter, output: Output, interruption: Interruption) -> bool | None:
    """Write what the group assigns, and commit what was written; None after a signal, else True."""
    is_gathered = job.format in _GATHERED
    stops = await interruption.unless(_stops(replace(job, config=without_consumer_keys(job.config))))
    if interruption.signal is not None:
        return None
    assert stops is None or isinstance(stops, dict)
    reading = GroupReading(
        {
            **job.config,
            "group.id": job.group,
            "auto.offset.reset": _RESETS[str(job.start)],
            "isolation.level": job.isolation_level,
        },
        job.topic,
        output.write,
        timeout=job.timeout,
        max_records=job.max_records,
        is_gathering=is_gathered,
    )
    await output.open()
    await reading.start()
    try:
        async with reporter.progress(None, lambda: (output.written, 0)):
            ends = None
            if stops is not None:
                ends = {TopicPartition(job.topic, partition): cast("int", stop) for partition, stop in stops.items()}
            await reading.read(ends, interruption, LONGEST_FINISH)
        if is_gathered:
            await asyncio.wait_for(output.finish(), None if interruption.signal is None else LONGEST_FINISH)
            await reading.commit()
    finally:
        await reading.close()
    return None if interruption.signal is not None else True
