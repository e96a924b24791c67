"""What a browser finds in a page of the built site: what it loads, and how wide the tables are at least."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path

# Of these a browser follows the address without being asked; other links it only shows.
_LOADING_LINKS = {"stylesheet", "icon", "preload", "modulepreload", "prefetch", "preconnect", "dns-prefetch"}
_LOADING = {"script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src", "audio": "src"}


@dataclass
class Table:
    """``columns``: the longest piece without a possible line break, in characters, of each column."""

    columns: list[int] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    """The text of each row's first cell."""
    head: list[str] = field(default_factory=list)


class Page(HTMLParser):
    """A page that was built.

    Attributes:
        loads: the addresses that a browser fetches to show it.
        diagrams: how many there are for Mermaid to draw.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.loads: list[str] = []
        self.diagrams = 0
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
        elif tag in ("wbr", "br") and self._cell is not None:
            self._cell += " "

    def handle_data(self, data: str) -> None:
        if self._cell is not None:
            # The first cell's names do not break at blanks either: docs/stylesheets/site.css.
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
