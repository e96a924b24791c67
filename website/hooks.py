"""What mkdocs.yml adds to the site.

- Mermaid comes with the pages: the theme fetches it from another host unless the page has loaded it already.
- Long names in tables can break after a dot, an underscore or a comma, and between the words of a class's name; options
  such as ``--listen`` cannot break after their dashes. docs/stylesheets/site.css does the rest.
- The API reference has the tables of errors, and links where a docstring names a page.
"""

from __future__ import annotations

import re
import runpy
from importlib.util import find_spec
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from mkdocs.utils import get_relative_url

MERMAID = "javascripts/mermaid.min.js"

_CELL = re.compile(r"<t[dh]\b.*?</t[dh]>", re.DOTALL)
_CODE = re.compile(r"<code>.*?</code>", re.DOTALL)
_BREAK = re.compile(r"(?<=[._,])(?=[^\W\d])|(?<=[a-z])(?=[A-Z][a-z])")
# Of code in a sentence; that of a block comes after <pre> and an empty <span>.
_INLINE = re.compile(r"(?<!<pre>)(?<!</span>)<code>.*?</code>", re.DOTALL)
# A page that a docstring names.
_DOCUMENT = re.compile(r"\bdocs/([a-z-]+)\.md")
_OPTION = re.compile(r"(?<![\w-])--[a-z-]+")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Put Mermaid among the files of the site.

    Raises:
        PluginError: the package that bears it is not installed.
    """
    package = find_spec("mermaidx")
    if package is None or not package.submodule_search_locations:
        raise PluginError(
            "The package mermaidx is not installed: pip install --no-deps --requirement website/requirements.txt"
        )
    script = Path(package.submodule_search_locations[0], "assets", "mermaid.js")
    files.append(File.generated(config, MERMAID, abs_src_path=str(script)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Write the tables of errors where a page asks for them."""
    if page.file.src_uri != "reference/errors.md":
        return markdown
    for mark, table in runpy.run_path(str(Path(__file__).with_name("errors.py")))["TABLES"].items():
        if mark not in markdown:
            raise PluginError(f"{page.file.src_uri} has no line {mark}, where website/errors.py writes a table")
        markdown = markdown.replace(mark, table())
    return markdown


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Decide where names and options may break, and link the pages that docstrings name."""
    if page is not None and page.file.src_uri.startswith("reference/"):
        html = _DOCUMENT.sub(r'<a href="../\1.html">\1</a>', html)
    html = _INLINE.sub(lambda code: _OPTION.sub(r'<span class="option">\g<0></span>', code[0]), html)
    return _CELL.sub(lambda cell: _CODE.sub(lambda code: _BREAK.sub("<wbr>", code[0]), cell[0]), html)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Load Mermaid, which is several megabytes, where there is something to draw."""
    if 'class="mermaid"' not in output:
        return output
    return output.replace("</body>", f'<script src="{get_relative_url(MERMAID, page.url)}"></script></body>')
