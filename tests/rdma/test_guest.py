"""The guest itself: it returns a command's output and exit code, and ends in time.

``make test-rdma`` runs these before anything in the guest.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kafka import jars
from tests.rdma.guest import cpio, packages

_ROOT = Path(__file__).parents[2]


@pytest.fixture
def bootable() -> None:
    if os.environ.get("AIOPRODUCER_TEST_GUEST") != "1":
        pytest.skip("`make test-rdma` runs this: it boots a guest, and downloads one at first")


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.rdma.guest", *arguments]
    return subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, timeout=280, check=False)


@pytest.mark.usefixtures("bootable")
def test_the_guest_returns_output_and_exit_code_of_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    program = 'pwd; echo error >&2; rdma link; echo "$SAID"; touch written && echo wrote; seq 30000 | tail -n 1; exit 3'
    monkeypatch.setenv("SAID", "it's 'quoted'")
    run = _run("--", "sh", "-c", program)
    expected = [
        str(_ROOT),
        "error",
        "link rxe0/1 state ACTIVE physical_state LINK_UP netdev lo",
        "it's 'quoted'",
        "wrote",
        "30000",
    ]
    assert [line.strip() for line in run.stdout.splitlines()] == expected, run.stderr
    assert run.returncode == 3
    assert not (_ROOT / "written").exists()


@pytest.mark.usefixtures("bootable")
def test_a_command_that_takes_too_long_is_ended() -> None:
    run = _run("--limit", "20", "--", "sh", "-c", "echo begun; sleep 600; echo ended")
    assert run.returncode == 124, run.stderr
    assert run.stdout.split() == ["begun"]


packaged = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() != "x86_64", reason="no guest runs here, which the guest says"
)


@packaged
def test_a_machine_without_debian_packages_is_unavailable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    run = _run("--", "true")
    assert run.returncode == 125
    assert "guest: the guest is made of Debian's packages, and there is no apt-get here; the tests in" in run.stderr


@packaged
def test_a_pyverbs_for_another_python_is_unavailable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    if shutil.which("apt-get") is None:
        pytest.skip("not a distribution with such packages")
    monkeypatch.setenv("AIOPRODUCER_TEST_CACHE", str(tmp_path))
    release = platform.freedesktop_os_release()
    folder = tmp_path / f"rdma-{release['ID']}-{release.get('VERSION_ID', 'rolling')}"
    modules = folder / "root" / "usr" / "lib" / "python3" / "dist-packages" / "pyverbs"
    modules.mkdir(parents=True)
    (modules / "device.cpython-399-x86_64-linux-gnu.so").touch()
    with pytest.raises(jars.HarnessUnavailableError, match=r"built for another Python than cpython-3\d+ .*cpython-399"):
        packages.resolve()


def test_an_archive_has_the_kernels_format() -> None:
    """Fields and padding of Documentation/driver-api/early-userspace/buffer-format.rst."""
    archive = cpio.archive({"a/b/c": b"12345", "init": b""})
    found = {}
    place = 0
    while True:
        assert archive[place : place + 6] == b"070701"
        fields = [int(archive[place + 6 + 8 * field : place + 14 + 8 * field], 16) for field in range(13)]
        mode, size, name_length = fields[1], fields[6], fields[11]
        name = archive[place + 110 : place + 110 + name_length]
        assert name.endswith(b"\0")
        content = place + (110 + name_length + 3) // 4 * 4
        if name == b"TRAILER!!!\0":
            break
        found[name[:-1].decode()] = (oct(mode), archive[content : content + size])
        place = content + (size + 3) // 4 * 4
    assert found == {
        "a": ("0o40755", b""),
        "a/b": ("0o40755", b""),
        "a/b/c": ("0o100755", b"12345"),
        "init": ("0o100755", b""),
    }
