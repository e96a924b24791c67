"""``from aioproducer import Producer`` imports only what a plain producer needs; the rest is loaded when used.

The tests compare names of modules instead of times, so that they have the same result everywhere. An import takes about
0.3 ms for each module, and tens of milliseconds for some of those below.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

# Including all their modules.
OPTIONAL_PACKAGES = {
    "Cython",
    "aioproducer.broker",
    "aioproducer.cli",
    "aioproducer.consumer",
    "aioproducer.gateway",
    "aioproducer.spark",
    "aioproducer.testing",
    "crc32c",
    "cramjam",
    "cryptography",
    "email",
    "importlib.metadata",
    "importlib.resources",
    "json",
    "lz4",
    "numpy",
    "pyarrow",
    "pytest",
    "uvloop",
    "zstandard",
}
OPTIONAL_MODULES = {
    "aioproducer.admin",
    "aioproducer._client.arrow",
    "aioproducer._client.bulk",
    "aioproducer.compression.gzip",
    "aioproducer.compression.lz4",
    "aioproducer.compression.snappy",
    "aioproducer.compression.zstd",
    "aioproducer.config.client_files",
    "aioproducer.config.config_dict",
    "aioproducer.config.config_dict_source",
    "aioproducer.config.documentation",
    "aioproducer.config.jaas",
    "aioproducer.config.providers",
    "aioproducer.config.sasl",
    "aioproducer.config.value_types",
    "aioproducer._common.error_texts",
    "aioproducer.security",
    "aioproducer.security.certificates",
    "aioproducer.security.renewal",
    "aioproducer.security.tls",
    "aioproducer._client.threadsafe",
    "aioproducer.transport.memory",
    "aioproducer.transport.tls_session",
    "aioproducer.transport.tls_transport",
    "argparse",
    "copy",
    "csv",
    "cython",
    "dataclasses",
    "datetime",
    "decimal",
    "fractions",
    "gettext",
    "platform",
    "shutil",
    "tempfile",
    "uuid",
    "zipfile",
}
# Modules that a producer needs to start, or imports when it sends. No other message is imported.
MESSAGES = {"api_versions", "headers", "leaders", "metadata", "produce", "producer_ids"}
# Modules that a running producer needs, but not the import.
LATER_MODULES = {"concurrent.futures.thread", "zlib"}


def imported(code: str) -> set[str]:
    """Return the modules that a new interpreter has imported after ``code``, without those of ``import asyncio``."""
    script = f"""
import asyncio, sys
before = set(sys.modules)
{code}
print(*sorted(set(sys.modules) - before))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def optional(modules: set[str]) -> set[str]:
    return {name for name in modules if name in OPTIONAL_MODULES or not OPTIONAL_PACKAGES.isdisjoint(_places(name))}


def messages(modules: set[str]) -> set[str]:
    """Return the families of messages among ``modules``."""
    package = "aioproducer.protocol.messages."
    return {name.removeprefix(package) for name in modules if name.startswith(package)}


def _places(name: str) -> set[str]:
    parts = name.split(".")
    return {".".join(parts[:length]) for length in range(1, len(parts) + 1)}


def test_importing_the_package_imports_nothing_else() -> None:
    assert imported("import aioproducer") <= {"aioproducer", "aioproducer._build"}


def test_importing_the_producer_imports_only_what_every_producer_needs() -> None:
    found = imported("from aioproducer import Producer")
    assert "aioproducer.producer" in found
    assert not optional(found)
    assert not found & LATER_MODULES
    assert messages(found) == MESSAGES


def test_starting_a_plain_producer_imports_nothing_else() -> None:
    found = imported(
        "from aioproducer import Producer\n"
        "async def main():\n"
        "    async with Producer(bootstrap_servers='localhost:1', linger_ms='5'):\n"
        "        pass\n"
        "asyncio.run(main())"
    )
    assert not optional(found)


@pytest.mark.parametrize("compression_type", ["gzip", "snappy", "lz4", "zstd"])
def test_a_compressing_producer_imports_only_its_codec(compression_type: str) -> None:
    found = imported(
        "from aioproducer import Producer\n"
        "async def main():\n"
        f"    async with Producer(bootstrap_servers='localhost:1', compression_type={compression_type!r}):\n"
        "        pass\n"
        "asyncio.run(main())"
    )
    codecs = {name for name in found if name.startswith("aioproducer.compression.")} - {"aioproducer.compression.base"}
    assert codecs == {f"aioproducer.compression.{compression_type}"}
