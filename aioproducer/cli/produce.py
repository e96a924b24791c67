"""``aioproducer produce``: send files and streams to a topic."""

from __future__ import annotations

import asyncio
import io
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import BinaryIO, Literal

import click

from aioproducer._common.texts import were
from aioproducer.admin import TopicDescription
from aioproducer.cli.columns import Columns
from aioproducer.cli.existing import require_topic
from aioproducer.cli.exits import EXPLANATION, FAILED, PARTLY_REJECTED, SUCCEEDED, CommandError, CommandUsageError
from aioproducer.cli.feeding import Feeder, Piece
from aioproducer.cli.options import ClusterOptions, cluster_options, diagnosis_options, pairs
from aioproducer.cli.output import print_json
from aioproducer.cli.progress import Reporter, Stopwatch, human_bytes, human_count, human_counted
from aioproducer.cli.reading import FORMATS, Reading, Row, guess_format, rows
from aioproducer.cli.running import Interruption, run
from aioproducer.cli.summary import Summary
from aioproducer.config import ProducerConfig
from aioproducer.errors import KafkaError
from aioproducer.producer import Producer

Outcome = Literal["committed", "aborted"]

STDIN = "-"
_TRANSACTIONAL_ID = "transactional.id"
# A line may be longer than the record made of one of its columns; the limit keeps a line from using all memory.
LONGEST_LINE = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Job:
    """The input, its format, and its destination."""

    topic: str
    file: io.FileIO
    reading: Reading
    partition: int | None
    config: dict[str, object]
    timeout: float
    create: bool
    in_transaction: bool
    rejects: BinaryIO | None
    as_json: bool

    @property
    def size(self) -> int | None:
        """Size of the input in bytes, if known in advance."""
        status = os.fstat(self.file.fileno())
        return status.st_size if stat.S_ISREG(status.st_mode) else None

    def rows(self, before_read: Callable[[int], None]) -> Iterator[Row]:
        """Return the rows of the input."""
        return rows(self.file, self.reading, before_read)


@click.command("produce", epilog=EXPLANATION)
@click.argument("topic")
@click.argument("file", default=STDIN, metavar="[FILE|-]")
@click.option(
    "-f", "--format", "format_", type=click.Choice(FORMATS), help="Format of FILE.  [default: by its name, else lines]"
)
@click.option("--key", metavar="COLUMN", help="Column, or field, with the key.")
@click.option("--value", metavar="COLUMN", help="Column with the value.  [default: the whole row, as JSON]")
@click.option("--headers", metavar="COLUMN", help="Column with headers: a JSON object, or a list of pairs.")
@click.option("--timestamp", metavar="COLUMN", help="Column with the time: milliseconds since 1970, or ISO 8601.")
@click.option("--header", "fixed_headers", multiple=True, metavar="NAME=VALUE", help="Add this header to all records.")
@click.option("--key-separator", metavar="TEXT", help="In lines, the text between the key and the value.")
@click.option("--delimiter", metavar="CHARACTER", help="In CSV, the separator.  [default: a comma; in .tsv a tab]")
@click.option("--partition", type=click.IntRange(min=0), help="Partition of all records.  [default: the partitioner's]")
@click.option("--create", is_flag=True, help="Create the topic if it does not exist.")
@click.option("--transaction", is_flag=True, help="Commit all records or none; needs --transactional-id.")
@click.option("--transactional-id", metavar="ID", help="The producer's id in transactions; also -X transactional.id.")
@click.option("--rejects", type=click.Path(), metavar="FILE", help="Write bad lines to FILE, unchanged.")
@click.option("--json", "as_json", is_flag=True, help="Print the final summary as a line of JSON.")
@click.option("-q", "--quiet", is_flag=True, help="Show no progress.")
@cluster_options
@diagnosis_options
def command(
    topic: str,
    file: str,
    format_: str | None,
    key: str | None,
    value: str | None,
    headers: str | None,
    timestamp: str | None,
    fixed_headers: tuple[str, ...],
    key_separator: str | None,
    delimiter: str | None,
    partition: int | None,
    create: bool,
    transaction: bool,
    transactional_id: str | None,
    rejects: str | None,
    as_json: bool,
    quiet: bool,
    cluster: ClusterOptions,
) -> int:
    """Send every row of FILE, or of stdin, to TOPIC.

    Each line, or each row of CSV, JSON lines, Parquet or Arrow, becomes a record. Files of any size and endless streams
    are read only as fast as the brokers accept records. Bad lines are counted, shown, and skipped. The first Ctrl-C
    delivers the records read so far; a second one discards them.

    With --transaction, readers of committed records see all of the records at the end of the input, and none of them
    after an error or Ctrl-C. The brokers abort what takes longer than transaction.timeout.ms, by default a minute.

    \b
    Examples:
      aioproducer produce flights flights.csv --key carrier
      tail -F access.log | aioproducer produce access -X compression.type=zstd
      aioproducer produce orders orders.jsonl --key id --timestamp created --rejects bad.jsonl
      aioproducer produce events events.parquet --value payload --headers headers --config client.properties
      aioproducer produce orders orders.jsonl --transaction --transactional-id nightly
    """
    chosen = format_ or guess_format(file)
    columns = Columns(
        key,
        value,
        headers,
        timestamp,
        tuple((name, each.encode()) for name, each in pairs(fixed_headers, "--header").items()),
    )
    _check(chosen, columns, key_separator, delimiter)
    if delimiter is None:
        delimiter = "\t" if file.endswith(".tsv") else ","
    config = cluster.config()
    _check_transaction(config, transaction, transactional_id)
    # Reports an invalid configuration before any file is opened.
    largest = ProducerConfig.from_mapping(config).max_request_size
    reading = Reading(
        chosen,
        columns,
        max(LONGEST_LINE, 2 * largest),
        delimiter.replace("\\t", "\t"),
        None if key_separator is None else key_separator.replace("\\t", "\t").encode(),
    )
    reporter = Reporter("produce", quiet=quiet)
    with ExitStack() as files:
        opened = files.enter_context(_open(file))
        rejected = None if rejects is None else files.enter_context(_open_rejects(rejects, file))
        job = Job(topic, opened, reading, partition, config, cluster.timeout, create, transaction, rejected, as_json)
        return run(lambda interruption: _produce(job, reporter, interruption))


def _check(format_: str, columns: Columns, key_separator: str | None, delimiter: str | None) -> None:
    """
    Raises:
        CommandUsageError: an option does not apply to the format.
    """
    if format_ == "lines" and columns.names:
        raise CommandUsageError(
            f"lines have no column {columns.names[0]!r}: set the file's format with --format, or use --key-separator"
        )
    if format_ != "lines" and key_separator is not None:
        raise CommandUsageError(f"--key-separator is for lines, not for {format_}: choose a column with --key")
    if format_ != "csv" and delimiter is not None:
        raise CommandUsageError(f"--delimiter is for CSV, not for {format_}")
    if delimiter is not None and len(delimiter.replace("\\t", "\t")) != 1:
        raise CommandUsageError(f"--delimiter takes one character, not {delimiter!r}")
    if key_separator == "":
        raise CommandUsageError("--key-separator must not be empty")


def _check_transaction(config: dict[str, object], transaction: bool, transactional_id: str | None) -> None:
    """Add the transactional id to the configuration.

    Raises:
        CommandUsageError: there is an id without a transaction, or a transaction without an id.
    """
    if transactional_id is not None:
        config[_TRANSACTIONAL_ID] = transactional_id
    given = _TRANSACTIONAL_ID in config
    if transaction and not given:
        raise CommandUsageError("--transaction needs --transactional-id ID, or -X transactional.id=ID")
    if given and not transaction:
        raise CommandUsageError("a producer with a transactional id sends in a transaction: add --transaction")


def _open(name: str) -> io.FileIO:
    """Open the input without a buffer, because a thread that waits inside a buffer would block the exit of Python.

    Raises:
        CommandError: it cannot be opened.
    """
    if name == STDIN:
        return io.FileIO(0, closefd=False)
    try:
        return io.FileIO(name)
    except OSError as error:
        raise CommandError(f"{name} cannot be read: {error.strerror}") from error


def _open_rejects(name: str, input_name: str) -> BinaryIO:
    if input_name != STDIN and os.path.exists(name) and os.path.samefile(name, input_name):
        raise CommandUsageError(f"--rejects {name} would overwrite the input")
    try:
        return open(name, "wb")
    except OSError as error:
        raise CommandError(f"--rejects {name} cannot be written: {error.strerror}") from error


class Run:
    """The state of one run of the command."""

    def __init__(self, job: Job, reporter: Reporter) -> None:
        self.job = job
        self.reporter = reporter
        self.summary = Summary()
        self.stopwatch = Stopwatch()
        self.bytes_read = 0
        self.bad_lines = 0
        self.interrupted = False
        self.read_all = False
        self.began_transaction = False
        self.outcome: Outcome | None = None
        """The end of the transaction, None without one or if it is unknown."""

    def look(self) -> tuple[int, int]:
        """Return acknowledged records and bytes read, for the line of progress."""
        self.tell()
        return self.summary.acked, self.bytes_read

    def tell(self) -> None:
        """Print the pending messages."""
        messages, self.summary.messages = self.summary.messages, []
        for text in messages:
            self.reporter.say(text)

    async def feed(self, producer: Producer) -> bool:
        """Send until the input ends, or until an error makes further sending useless; return True."""
        feeder = Feeder(self.job.rows, rejects=self.job.rejects)
        feeder.start()
        try:
            while self.summary.grave_error is None:
                piece = await feeder.next()
                if piece is None:
                    self.read_all = True
                    break
                await self._send(producer, piece)
        finally:
            feeder.end()
        return True

    async def _send(self, producer: Producer, piece: Piece) -> None:
        topic, partition = self.job.topic, self.job.partition
        summary = self.summary
        send, drain = producer.send, producer.drain
        self.bytes_read = piece.bytes_read
        self.bad_lines += piece.bad_lines
        for text in piece.shown:
            self.reporter.say(text)
        for value, key, headers, timestamp_ms in piece.records:
            send(topic, value, key, partition=partition, timestamp_ms=timestamp_ms, headers=headers)
            summary.accepted += 1
            summary.accepted_bytes += (0 if value is None else len(value)) + (0 if key is None else len(key))
            await drain()
            if summary.grave_error is not None:
                return

    def as_json(self) -> dict[str, object]:
        """Return the final summary for JSON output."""
        return {
            "topic": self.job.topic,
            **self.summary.as_json(self.stopwatch.seconds()),
            "bad_lines": self.bad_lines,
            "interrupted": self.interrupted,
            "transaction": self.outcome,
        }


async def _produce(job: Job, reporter: Reporter, interruption: Interruption) -> int:
    topic = await interruption.unless(require_topic(job.config, job.topic, job.timeout, create=job.create))
    if topic is None:
        return interruption.exit_code
    _check_partition(job, topic)
    run = Run(job, reporter)
    summary = run.summary
    producer = Producer.from_config(job.config, on_error=summary.on_error, hooks=[summary])
    failure: Exception | None = None
    async with producer:
        try:
            async with reporter.progress(job.size, run.look):
                try:
                    run.interrupted = await interruption.unless(_send_all(run, producer)) is None
                except (CommandError, KafkaError, OSError) as error:
                    failure = error
                if run.interrupted:
                    _say_interrupted(run)
                if job.in_transaction:
                    failure = await _end_transaction(run, producer, failure)
                else:
                    await producer.flush()
        except asyncio.CancelledError:
            # The second signal is handled here. A later asyncio.timeout of CPython 3.11.2 would otherwise mistake the
            # open cancellation for its own.
            interruption.uncancel()
            await producer.close(0)
    run.tell()
    if summary.accepted or failure is None or job.as_json:
        _print_summary(run)
    return _outcome(run, failure, interruption)


async def _send_all(run: Run, producer: Producer) -> bool:
    """Begin the transaction, if requested, and send the input; return True."""
    if run.job.in_transaction:
        await producer.begin_transaction()
        run.began_transaction = True
    return await run.feed(producer)


def _say_interrupted(run: Run) -> None:
    summary = run.summary
    accepted = f"interrupted: {human_counted(summary.accepted, 'record')} {were(summary.accepted)} accepted"
    if run.job.in_transaction:
        run.reporter.say(f"{accepted}; aborting the transaction, interrupt again to leave that to the brokers")
        return
    left = summary.accepted - summary.acked - summary.failed
    run.reporter.say(f"{accepted}, delivering the last {human_count(left)}; interrupt again to discard them")


async def _end_transaction(run: Run, producer: Producer, failure: Exception | None) -> Exception | None:
    """Commit the transaction if the whole input was sent, else abort it; return what went wrong.

    If ``failure`` is given, return it.
    """
    if not run.began_transaction:
        return failure
    if failure is None and run.read_all and not run.summary.failed:
        try:
            await producer.commit_transaction()
        except KafkaError as error:
            failure = error
        else:
            run.outcome = "committed"
            return None
    try:
        await producer.abort_transaction()
    except KafkaError as error:
        # The brokers abort it after its time-out, unless a commit was sent.
        return failure or error
    run.outcome = "aborted"
    run.reporter.say("the transaction was aborted")
    return failure


def _check_partition(job: Job, topic: TopicDescription) -> None:
    """
    Raises:
        CommandError: the topic has no such partition.
    """
    count = len(topic.partitions)
    if job.partition is not None and job.partition >= count:
        raise CommandError(f"topic {job.topic} has no partition {job.partition}: it has {count}, numbered from 0")


def _outcome(run: Run, failure: Exception | None, interruption: Interruption) -> int:
    """Return the exit code.

    Raises:
        CommandError, OSError, KafkaError: something failed.
    """
    summary = run.summary
    if failure is not None:
        raise failure
    if run.interrupted and run.job.in_transaction:
        # Records that were not sent have failed by the abort.
        return interruption.exit_code
    if summary.failed and not (run.interrupted and summary.failed == summary.errors["ProducerClosedError"]):
        raise CommandError(_why_failed(run))
    if run.interrupted:
        return interruption.exit_code
    if run.bad_lines:
        return PARTLY_REJECTED if summary.accepted else FAILED
    return SUCCEEDED


def _why_failed(run: Run) -> str:
    summary = run.summary
    error = summary.grave_error or summary.first_error
    stopped = "" if run.read_all else "; the rest of the input was not sent"
    return f"{human_count(summary.failed)} of {human_counted(summary.accepted, 'record')} failed{stopped}. {error}"


def _print_summary(run: Run) -> None:
    if run.job.as_json:
        print_json(run.as_json())
        return
    summary = run.summary
    seconds = run.stopwatch.seconds()
    latencies = summary.latencies
    rate = summary.acked / seconds if seconds > 0 else 0.0
    lines = [
        ("records", f"{human_count(summary.acked)} acknowledged of {human_count(summary.accepted)}"),
        ("bytes", f"{human_bytes(summary.accepted_bytes)}, sent as {human_bytes(summary.sent_bytes)}"),
        ("batches", human_count(summary.batches)),
        ("time", f"{seconds:.2f} s, {human_count(rate)} records/s"),
    ]
    if latencies.count:
        p50, p99 = latencies.percentile(50), latencies.percentile(99)
        lines.append(("latency", f"p50 {p50:.1f} ms, p99 {p99:.1f} ms, max {latencies.maximum:.1f} ms"))
    lines.append(("sent again", human_count(summary.retries)))
    for name, count in summary.errors.most_common():
        lines.append(("failed", f"{human_count(count)} {name}"))
    if run.bad_lines:
        lines.append(("bad lines", human_count(run.bad_lines)))
    if run.job.in_transaction:
        lines.append(("outcome", run.outcome or "unknown"))
    for title, text in lines:
        print(f"{title + ':':<12}{text}")
