"""CRC-32C: the check value of RFC 3720 and chaining."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioproducer.wire import crc32c as module
from aioproducer.wire.crc32c import crc32c


def test_known_values_have_their_checksum() -> None:
    assert crc32c([b"123456789"]) == 0xE3069283
    assert crc32c([bytes(32)]) == 0x8A9136AA
    assert crc32c([]) == 0


@given(st.lists(st.binary(max_size=50), max_size=6))
def test_several_buffers_are_checksummed_as_one(parts: list[bytes]) -> None:
    whole = crc32c([b"".join(parts)])
    assert crc32c(parts) == crc32c([memoryview(part) for part in parts]) == whole
    assert crc32c(parts[1:], crc32c(parts[:1])) == whole


@pytest.mark.parametrize("missing", ["crc32c", "crc32c._crc32c"])
def test_the_package_is_imported_if_its_extension_is_missing(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    find_spec = PathFinder.find_spec

    def find(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        return None if name == missing else find_spec(name, path, target)

    with monkeypatch.context() as patch:
        patch.setattr(PathFinder, "find_spec", find)
        assert module._find_extension() is None
    assert module._import_package()(b"123456789", 0, 0) == 0xE3069283


def test_the_package_works_if_imported_later() -> None:
    """A later import of the whole package works and gives the same checksums."""
    script = (
        "from aioproducer.wire.crc32c import crc32c\n"
        "import sys\n"
        "assert 'crc32c' not in sys.modules\n"
        "import crc32c as package\n"
        "print(crc32c([b'123456789']), package.crc32c(b'123456789'), package.CRC32CHash(b'123456789').checksum)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(0xE3069283)] * 3
