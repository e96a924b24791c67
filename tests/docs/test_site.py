"""The documentation is built as ``make docs`` builds it: no broken link, no page left out."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT


def _build(site: Path, configuration: Path = ROOT / "mkdocs.yml") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(site)]
    return subprocess.run(
        [*command, "--config-file", str(configuration)], capture_output=True, text=True, timeout=120, check=False
    )


def test_site_is_built(tmp_path: Path) -> None:
    run = _build(tmp_path / "site")
    assert run.returncode == 0, run.stderr
    pages = {page.parent.name for page in (tmp_path / "site").rglob("index.html")}
    assert {page.stem for page in (ROOT / "docs").glob("*.md")} - {"index"} <= pages


@pytest.mark.parametrize("text", ["[gone](gone.md)", "[gone](index.md#gone)"])
def test_broken_links_are_found(tmp_path: Path, text: str) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text(f"# Page\n\n{text}\n")
    settings = (ROOT / "mkdocs.yml").read_text()
    (tmp_path / "mkdocs.yml").write_text(settings[: settings.index("nav:")] + settings[settings.index("validation:") :])
    assert _build(tmp_path / "site", tmp_path / "mkdocs.yml").returncode != 0
