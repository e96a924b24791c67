"""The site as ``make docs`` builds it, and the contents of its pages: loaded addresses, widths of tables."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path

from tests.docs.blocks import ROOT

# Attributes with an address that a browser loads at once, unlike links.
_LOADING_LINKS = {"stylesheet", "icon", "preload", "modulepreload", "prefetch", "preconnect", "dns-prefetch"}
_LOADING = {"script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src", "audio": "src"}


def build(site: Path, configuration: Path = ROOT / "mkdocs.yml") -> subprocess.CompletedProcess[str]:
    """Build the pages into the folder ``site``."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(site)]
    return subprocess.run(
        [*command, "--config-file", str(configuration)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
    )


@dataclass
class Table:
    """``columns``: the longest piece without a possible line break, in characters, of each column."""

    columns: list[int] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    """The text of each row's first cell."""
    head: list[str] = field(default_factory=list)


class Page(HTMLParser):
    """A page of the built site.

    Attributes:
        loads: the addresses that a browser fetches to show it.
        diagrams: the number of diagrams for Mermaid.
        anchors: the names of the page's parts for links.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.loads: list[str] = []
        self.diagrams = 0
        self.anchors: set[str] = set()
        self.tables: list[Table] = []
        self._column = -1
        self._cell: str | None = None
        self._is_code = False
        self.feed(path.read_text(encoding="utf-8"))
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag in _LOADING and _LOADING[tag] in given:
            self.loads.append(given[_LOADING[tag]])
        elif tag == "link" and _LOADING_LINKS & set(given.get("rel", "").split()):
            self.loads.append(given["href"])
        if "id" in given:
            self.anchors.add(given["id"])
        if "mermaid" in given.get("class", "").split():
            self.diagrams += 1
        if tag == "table":
            self.tables.append(Table())
        elif tag == "tr":
            self._column = -1
        elif tag in ("td", "th"):
            self._column += 1
            self._cell = ""
        elif tag == "code":
            self._is_code = True
        elif self._cell is not None and (tag == "br" or (tag == "wbr" and self._column > 0)):
            # The first cell's names break on phones alone: docs/stylesheets/site.css.
            self._cell += " "

    def handle_data(self, data: str) -> None:
        if self._cell is not None:
            # The first cell's names do not break at blanks either.
            self._cell += data.replace(" ", "\N{NO-BREAK SPACE}") if self._is_code and self._column == 0 else data

    def handle_endtag(self, tag: str) -> None:
        if tag == "code":
            self._is_code = False
        elif tag in ("td", "th") and self._cell is not None:
            table = self.tables[-1]
            if self._column == 0:
                table.keys.append(self._cell)
            if tag == "th":
                table.head.append(self._cell)
            # Not at no-break spaces, as str.split() alone would.
            longest = max(map(len, self._cell.replace("\n", " ").split(" ")))
            table.columns += [0] * (self._column + 1 - len(table.columns))
            table.columns[self._column] = max(table.columns[self._column], longest)
            self._cell = None
