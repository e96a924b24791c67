"""The site as ``make docs`` builds it: no broken link, no missing page, nothing from other hosts."""

from __future__ import annotations

import re
import runpy
import shutil
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from mkdocs.exceptions import PluginError

from tests.docs.blocks import ROOT
from tests.docs.site import Page, build

# The theme's script fetches these from another host: Mermaid, unless the page has loaded it, and a polyfill of a
# function that every browser has had since 2020.
FETCHED_UNLESS_THERE = {"mermaid", "resize-observer-polyfill"}

# A page of 1,200 pixels has 926 for its text; a character of code in a table takes 6.6, a column's margins 31.
WIDTH_OF_A_TABLE = 926


@pytest.fixture(scope="module")
def pages(site: Path) -> list[Page]:
    return [Page(path) for path in sorted(site.rglob("*.html"))]


def test_every_document_is_a_page(pages: list[Page]) -> None:
    assert {document.stem for document in (ROOT / "docs").glob("*.md")} <= {page.path.stem for page in pages}


def test_pages_load_nothing_from_other_hosts(pages: list[Page], site: Path) -> None:
    for page in pages:
        # A server returns 404.html for any path, so its addresses begin at the site's root.
        base = site if page.path.name == "404.html" else page.path.parent
        assert page.loads, page.path.name
        for address in page.loads:
            assert not urlsplit(address).netloc, f"{page.path.name} loads {address}"
            assert (base / urlsplit(address).path.removeprefix("/")).is_file(), f"{page.path.name} loads {address}"


def test_style_sheets_load_nothing_from_other_hosts(site: Path) -> None:
    sheets = sorted(site.rglob("*.css"))
    assert sheets
    for sheet in sheets:
        loaded = re.findall(r"""url\(\s*["']?([^"')]+)|@import\s+["']([^"']+)""", sheet.read_text(encoding="utf-8"))
        assert not [address for address in map("".join, loaded) if urlsplit(address).netloc], sheet


def test_scripts_of_the_theme_fetch_only_what_a_browser_lacks(site: Path) -> None:
    scripts = sorted((site / "assets").rglob("*.js"))
    assert scripts
    packages = {
        package
        for script in scripts
        for package in re.findall(r"//(?:unpkg\.com|cdn[\w.]*)/([a-z-]+)", script.read_text(encoding="utf-8"))
    }
    assert packages <= FETCHED_UNLESS_THERE


def test_pages_with_diagrams_bring_mermaid(pages: list[Page]) -> None:
    with_diagrams = {page.path.stem for page in pages if page.diagrams}
    assert with_diagrams == {
        document.stem for document in (ROOT / "docs").glob("*.md") if "```mermaid" in document.read_text()
    }
    assert with_diagrams == {page.path.stem for page in pages if "javascripts/mermaid.min.js" in page.loads}


def test_missing_package_of_mermaid_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    on_files = runpy.run_path(str(ROOT / "website" / "hooks.py"))["on_files"]
    monkeypatch.setitem(on_files.__globals__, "find_spec", lambda name: None)
    with pytest.raises(PluginError, match=r"pip install --no-deps --requirement website/requirements\.txt"):
        on_files([], None)


def test_keys_in_tables_are_not_broken(pages: list[Page]) -> None:
    [configuration] = [page for page in pages if page.path.stem == "configuration"]
    assert "stylesheets/site.css" in configuration.loads
    keys = {key for table in configuration.tables for key in table.keys}
    assert "max.in.flight.requests.per.connection" in keys


def test_names_in_tables_break_between_words_and_options_not_at_all() -> None:
    on_page_content = runpy.run_path(str(ROOT / "website" / "hooks.py"))["on_page_content"]

    def content(html: str) -> str:
        return on_page_content(html, None, None, None)

    row = "<tr>\n<td><code>key_of ItsError</code></td>\n<td><code>TLSv1.2,TLSv1.3 use_all.x</code> a.word</td>\n</tr>"
    first = row.replace("key_of ItsError", "key_<wbr>of Its<wbr>Error")
    assert content(row) == first.replace("2,TLS", "2,<wbr>TLS").replace("use_all.x", "use_<wbr>all.<wbr>x")
    assert content("<p><code>run --no-x a-b</code></p>") == (
        '<p><code>run <span class="option">--no-x</span> a-b</code></p>'
    )
    block = "<pre><span></span><code>run --no-x</code></pre>"
    assert content(block) == block


def test_no_table_has_an_empty_head(pages: list[Page]) -> None:
    assert not [(page.path.name, table.keys) for page in pages for table in page.tables if not any(table.head)]


def test_tables_fit_a_page_of_1200_pixels(pages: list[Page]) -> None:
    for page in pages:
        for table in page.tables:
            width = sum(6.6 * longest + 31 for longest in table.columns)
            assert width <= WIDTH_OF_A_TABLE, (page.path.name, table.keys[:3])


@pytest.mark.parametrize("link", ["gone.md", "index.md#gone"])
def test_broken_links_are_found(tmp_path: Path, link: str) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text(f"# Page\n\n[text]({link})\n")
    shutil.copytree(ROOT / "website", tmp_path / "website")
    settings = (ROOT / "mkdocs.yml").read_text()
    (tmp_path / "mkdocs.yml").write_text(settings[: settings.index("nav:")] + settings[settings.index("validation:") :])
    run = build(tmp_path / "site", tmp_path / "mkdocs.yml")
    assert run.returncode != 0
    assert link in run.stderr
