"""The expected results of the second stage, computed from the package's files without Spark, and the actual ones."""

from __future__ import annotations

import csv
import hashlib
import json
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import Message
from flights import KEY, MISSING, csv_lines, package, row_of
from readback import ReadBackError, Reader, partition_of, position

Value = int | float | str | None
# Any: the columns have values of different types.
Row = dict[str, Any]

WEATHER = ("temp", "wind_speed", "precip", "visib")


@dataclass
class AnyOrder:
    """A digest of rows in any order, as parallel tasks write them: their number, and a SHA-256 of sorted SHA-256s."""

    lines: list[bytes] = field(default_factory=list)

    @property
    def count(self) -> int:
        return len(self.lines)

    def add(self, row: Row) -> None:
        names = sorted(row)
        self.lines.append(hashlib.sha256(f"{names}{[row[name] for name in names]}".encode()).digest())

    def hex(self) -> str:
        return hashlib.sha256(b"".join(sorted(self.lines))).hexdigest()


class Figures:
    """The delays of one carrier in one hour of the day."""

    def __init__(self) -> None:
        self._flights = self._departed = self._seats = 0
        self._seats_known = False
        self._delays: list[int] = []
        self._delays_in_rain: list[int] = []

    def add(self, row: Row) -> None:
        self._flights += 1
        self._departed += row["dep_time"] is not None
        if row["seats"] is not None:
            self._seats_known = True
            self._seats += row["seats"]
        if row["dep_delay"] is not None:
            self._delays.append(row["dep_delay"])
            if row["precip"] is not None and row["precip"] > 0:
                self._delays_in_rain.append(row["dep_delay"])

    def row(self, carrier: str, hour: int) -> Row:
        return {
            "carrier": carrier,
            "hour": hour,
            "flights": self._flights,
            "cancelled": self._flights - self._departed,
            "minutes_late": sum(self._delays) if self._delays else None,
            "mean_delay": _mean(self._delays),
            "worst_delay": max(self._delays, default=None),
            "mean_delay_in_rain": _mean(self._delays_in_rain),
            "seats": self._seats if self._seats_known else None,
        }


@dataclass
class Topic:
    """The actual or expected content of a topic: a digest of the rows of each key."""

    digests: dict[str, AnyOrder] = field(default_factory=lambda: defaultdict(AnyOrder))
    rows: list[Row] = field(default_factory=list)
    """The rows themselves, kept if there are few."""
    partitions: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    size: int = 0
    seconds: float = 0.0

    @property
    def records(self) -> int:
        return sum(digest.count for digest in self.digests.values())

    def same_as(self, other: Topic) -> bool:
        return {key: digest.hex() for key, digest in self.digests.items()} == {
            key: digest.hex() for key, digest in other.digests.items()
        }


def _mean(delays: list[int]) -> float | None:
    return sum(delays) / len(delays) if delays else None


def _cell(cell: str, kind: type[float | int | str]) -> Value:
    return None if cell == MISSING else kind(cell)


def _table(name: str) -> Iterator[dict[str, str]]:
    with (package() / name).open(newline="", encoding="utf-8") as lines:
        yield from csv.DictReader(lines)


def expected() -> tuple[Topic, Topic]:
    """Return the flights with their weather and planes, and the delays by carrier and hour."""
    weather = {
        (seen["origin"], seen["time_hour"]): {name: _cell(seen[name], float) for name in WEATHER}
        for seen in _table("weather.csv")
    }
    planes = {
        plane["tailnum"]: {
            "built": _cell(plane["year"], int),
            "manufacturer": _cell(plane["manufacturer"], str),
            "model": _cell(plane["model"], str),
            "seats": _cell(plane["seats"], int),
        }
        for plane in _table("planes.csv")
    }
    no_weather: Row = dict.fromkeys(WEATHER)
    no_plane: Row = dict.fromkeys(("built", "manufacturer", "model", "seats"))
    flights, delays = Topic(), Topic()
    figures: dict[tuple[str, int], Figures] = defaultdict(Figures)
    lines = csv_lines()
    header = next(lines).split(",")
    for line in lines:
        flight: Row = row_of(header, line)
        row: Row = {
            **flight,
            **weather.get((flight["origin"], flight["time_hour"]), no_weather),
            **planes.get(flight["tailnum"], no_plane),
        }
        flights.digests[row[KEY]].add(row)
        figures[row[KEY], row["hour"]].add(row)
    for (carrier, hour), figure in figures.items():
        row = figure.row(carrier, hour)
        delays.rows.append(row)
        delays.digests[f"{carrier}-{hour}"].add(row)
    return flights, delays


def read(reader: Reader, *, keep: bool) -> Topic:
    """Return the new content of a topic.

    Raises:
        ReadBackError: no message arrives any longer although some are missing, or one is not a JSON row with a key.
    """
    found = Topic()
    began = time.perf_counter()
    for message in reader.messages():
        key, row = _record(message)
        found.digests[key].add(row)
        found.partitions[key].add(partition_of(message))
        found.size += len(message)
        if keep:
            found.rows.append(row)
    found.seconds = time.perf_counter() - began
    return found


def _record(message: Message) -> tuple[str, Row]:
    key, value = message.key(), message.value()
    try:
        if key is None or value is None:
            raise TypeError
        row = json.loads(value)
        if not isinstance(row, dict):
            raise TypeError
        return key.decode(), row
    except (TypeError, ValueError, AttributeError) as wrong:
        raise ReadBackError(f"{position(message)} is not a row with a key: {key!r}: {value!r}") from wrong
