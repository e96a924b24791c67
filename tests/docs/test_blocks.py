"""Every block of code in README.md and docs/ runs here, or in a test that is listed below."""

from __future__ import annotations

import ast
import subprocess
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from aioproducer.testing import EmbeddedClusterThread
from tests.docs.blocks import ROOT, Block, BlockError, Page, blocks_of, check_output, starts_a_broker

DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]

RUN = {"python", "sh"}
# Languages that are not code, and the rule for such a block.
SHOWN = {"text": "what the block before printed", "mermaid": "checked by test_house.py"}

# Documents with blocks that another test runs.
ELSEWHERE = {
    "docs/security.md": "tests/interop/security/test_docs.py",
    "docs/simulation.md": "tests/testing/test_simulation.py",
    "docs/spark.md": "tests/examples/test_spark_docs.py",
    "docs/testing.md": "tests/testing/test_plugin.py",
}

# Commands that cannot run inside the suite, and where they run instead.
COMMANDS = {
    "make demo": "tests/fresh_root/run.py",
    "make test": ".ci/run",
    "make check": ".ci/run",
    "make docs": "tests/docs/test_site.py",
    "make compiled": ".ci/run",
    "make test-unit": ".ci/run",
    "make test-unit BUILD=pure": ".ci/run",
    "make test-sanitizers": ".ci/run",
    "make demo BOOTSTRAP=localhost:9092": "tests/examples/test_demo.py",
}


def _name(document: Path) -> str:
    return document.relative_to(ROOT).as_posix()


def _is_command(block: Block) -> bool:
    return block.language == "sh" and all(line.split(" #")[0].strip() in COMMANDS for line in block.text.splitlines())


@pytest.fixture
def cluster() -> Iterator[EmbeddedClusterThread]:
    with EmbeddedClusterThread() as running:
        yield running


@pytest.mark.parametrize("document", DOCUMENTS, ids=_name)
def test_blocks_do_what_they_say(document: Path, tmp_path: Path) -> None:
    blocks = blocks_of(document)
    if _name(document) in ELSEWHERE:
        assert document.name in (ROOT / ELSEWHERE[_name(document)]).read_text()
        return
    unknown = {block.language for block in blocks} - RUN - SHOWN.keys()
    assert not unknown, f"{document.name} has blocks of {unknown}, which nothing runs"
    if not any(block.language in RUN and not _is_command(block) for block in blocks):
        return
    if starts_a_broker(blocks):
        _run(Page(tmp_path, None), blocks)
    else:
        with EmbeddedClusterThread() as cluster:
            _run(Page(tmp_path, cluster), blocks)


def _run(page: Page, blocks: list[Block]) -> None:
    printed: str | None = None
    try:
        for block in blocks:
            if block.language == "text":
                if printed is None:
                    raise BlockError(f"{block} follows no block that was run")
                check_output(block, block.text, printed)
            elif block.language in RUN and not _is_command(block):
                printed = page.run(block)
            else:
                printed = None
    finally:
        page.close()


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_exist_and_are_run_elsewhere(command: str) -> None:
    assert any(command in block.text for document in DOCUMENTS for block in blocks_of(document) if _is_command(block))
    target = command.split()[1]
    assert f"make {target}" in (ROOT / COMMANDS[command]).read_text()
    dry = subprocess.run([*command.split(), "--dry-run"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert dry.returncode == 0, dry.stderr


def test_no_python_block_is_only_comments() -> None:
    for document in DOCUMENTS:
        for block in blocks_of(document):
            if block.language == "python":
                tree = compile(block.text, str(block), "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
                assert isinstance(tree, ast.Module)
                assert tree.body, block


def _page(folder: Path, text: str) -> list[Block]:
    # Within the project's folder only by name: errors have paths relative to it.
    document = folder / "page.md"
    document.write_text(textwrap.dedent(text))
    return [Block(ROOT / "page.md", block.line, block.language, block.text) for block in blocks_of(document)]


def test_blocks_that_fail_are_found(tmp_path: Path, cluster: EmbeddedClusterThread) -> None:
    failing = {
        "python": "raise SystemExit(3)",
        "sh": "false; true",
    }
    for language, text in failing.items():
        folder = tmp_path / language
        folder.mkdir()
        with pytest.raises(BlockError, match=r"page\.md:4 ended with exit code"):
            _run(Page(folder, cluster), _page(folder, f"# Page\n\n```{language}\n{text}\n```\n"))


def test_wrong_output_is_found(tmp_path: Path, cluster: EmbeddedClusterThread) -> None:
    blocks = _page(tmp_path, "```sh\necho one two\n```\n\n```text\none ... three\n```\n")
    with pytest.raises(BlockError, match=r"page\.md:6 should be what the block before printed"):
        _run(Page(tmp_path, cluster), blocks)


def test_blocks_in_lists_and_with_long_fences_are_found(tmp_path: Path) -> None:
    blocks = _page(tmp_path, "- item\n\n  ```sh\n  echo one\n  ```\n\n````text\n```python\n````\n")
    assert [(block.language, block.text) for block in blocks] == [("sh", "echo one\n"), ("text", "```python\n")]


def test_a_block_that_does_not_end_is_found(tmp_path: Path) -> None:
    with pytest.raises(BlockError, match="does not end"):
        _page(tmp_path, "```sh\necho\n")


def test_processes_of_a_block_end_with_its_page(tmp_path: Path, cluster: EmbeddedClusterThread) -> None:
    page = Page(tmp_path, cluster)
    (block,) = _page(tmp_path, "```sh\nsleep 600 & echo $!\n```\n")
    process_id = page.run(block).strip()
    page.close()
    assert not Path("/proc", process_id).exists() or "Z" in Path("/proc", process_id, "stat").read_text().split()[2]
