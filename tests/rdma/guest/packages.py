"""The guest's parts, from packages of this machine's distribution, downloaded once into a cache folder.

``AIOPRODUCER_TEST_CACHE`` replaces ``~/.cache/aioproducer-tests``.
"""

from __future__ import annotations

import fcntl
import lzma
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from tests.kafka import jars

# The packages of a guest; apt adds the libraries that this machine lacks.
_INSTALLED = ("qemu-system-x86", "busybox-static", "iproute2", "ibverbs-providers", "librdmacm1")
# Without their dependencies: this machine's Python runs pyverbs, and no boot loader starts the kernel.
_ALONE = ("python3-pyverbs",)
_KERNEL = "linux-image-amd64"

# Kernel modules, without their dependencies.
_MODULES = (
    "virtio_pci",
    "virtio_net",
    "virtio_rng",
    "virtio_console",
    "9p",
    "9pnet_virtio",
    "overlay",
    "crc32_generic",
    "ib_uverbs",
    "rdma_rxe",
)

_HOW_ELSE = "the tests in tests/rdma also run by themselves on a machine that has pyverbs and an RDMA device"


class Parts(NamedTuple):
    """The parts of a guest.

    root
        The packages' files, with their paths below ``/``.
    kernel
        Uncompressed: QEMU starts it by its PVH entry.
    modules
        A folder of kernel modules, and in ``order`` their names in the order in which they are loaded.
    """

    root: Path
    kernel: Path
    modules: Path

    @property
    def libraries(self) -> str:
        """``LD_LIBRARY_PATH`` for the packages' programs."""
        return f"{self.root}/usr/lib/x86_64-linux-gnu:{self.root}/lib/x86_64-linux-gnu"

    @property
    def python_path(self) -> Path:
        """The folder that pyverbs is imported from."""
        return self.root / "usr" / "lib" / "python3" / "dist-packages"


def resolve() -> Parts:
    """Return the guest's parts, from the cache or downloaded into it.

    Raises:
        HarnessUnavailableError: this machine's distribution has no such packages, or none for this Python.
    """
    _check_machine()
    release = platform.freedesktop_os_release()
    folder = jars.cache() / f"rdma-{release['ID']}-{release.get('VERSION_ID', 'rolling')}"
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with open(folder.parent / f".{folder.name}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not folder.is_dir():
                _fill(folder)
    parts = Parts(folder / "root", folder / "vmlinux", folder / "modules")
    _check_python(parts)
    return parts


def _check_machine() -> None:
    if sys.platform != "linux" or platform.machine() != "x86_64":
        raise jars.HarnessUnavailableError(
            f"the guest needs Linux on x86_64, this is {sys.platform} on {platform.machine()}; {_HOW_ELSE}"
        )
    for program in ("apt-get", "apt-cache", "dpkg-deb"):
        if shutil.which(program) is None:
            raise jars.HarnessUnavailableError(
                f"the guest is made of Debian's packages, and there is no {program} here; {_HOW_ELSE}"
            )


def _check_python(parts: Parts) -> None:
    tag = f"cpython-{sys.version_info.major}{sys.version_info.minor}"
    built = sorted((parts.python_path / "pyverbs").glob("device.*.so"))
    if not any(tag in path.name for path in built):
        raise jars.HarnessUnavailableError(
            f"python3-pyverbs of this distribution is built for another Python than {tag} "
            f"({', '.join(path.name for path in built) or 'it has no modules'}): run the tests with that Python "
            f"(make PYTHON=/usr/bin/python3); {_HOW_ELSE}"
        )


def _fill(folder: Path) -> None:
    """Download and unpack beside ``folder``, then rename, so that an incomplete folder is never used."""
    partial = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        archives = _download(partial / "apt")
        for archive in archives:
            _run(["dpkg-deb", "-x", str(archive), str(partial / "root")], "unpack")
        _take_kernel(partial)
        shutil.rmtree(partial / "apt")
        partial.chmod(0o755)
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _download(place: Path) -> list[Path]:
    """Return the packages' archives, downloaded by apt with its state in ``place``, apart from this machine's."""
    archives = place / "cache" / "archives"
    for path in (archives / "partial", place / "state" / "lists" / "partial"):
        path.mkdir(parents=True)
    settings = {
        "Dir::State": place / "state",
        "Dir::State::status": "/var/lib/dpkg/status",
        "Dir::Cache": place / "cache",
        "APT::Sandbox::User": "root",
        "Debug::NoLocking": "1",
    }
    options = ["-qq", *(f"-o{name}={value}" for name, value in settings.items())]
    _run(["apt-get", *options, "update"], "list the packages of")
    what = "download the guest's packages from"
    download_only = ["--yes", "--no-install-recommends", "--reinstall", "--download-only"]
    _run(["apt-get", *options, *download_only, "install", *_INSTALLED], what)
    depends = _run(["apt-cache", *options[1:], "depends", _KERNEL], what).splitlines()
    kernels = [line.split()[-1] for line in depends if line.strip().startswith("Depends: linux-image-")]
    if len(kernels) != 1:
        raise jars.HarnessUnavailableError(f"{_KERNEL} names no kernel of this distribution; {_HOW_ELSE}")
    _run(["apt-get", *options, "download", *_ALONE, *kernels], what, folder=archives)
    return sorted(archives.glob("*.deb"))


def _take_kernel(place: Path) -> None:
    """Extract the kernel's image, and only the modules that a guest loads."""
    images = list((place / "root" / "boot").glob("vmlinuz-*"))
    if len(images) != 1:
        raise jars.HarnessUnavailableError(f"the kernel's package has not one image, but {images}")
    (image,) = images
    version = image.name.removeprefix("vmlinuz-")
    (place / "vmlinux").write_bytes(_unpacked(image.read_bytes()))
    tree = place / "root" / "lib" / "modules" / version
    _run([str(place / "root" / "bin" / "busybox"), "depmod", "-b", str(place / "root"), version], "list modules with")
    needed: dict[str, list[str]] = {}
    for line in (tree / "modules.dep").read_text().splitlines():
        path, _, dependencies = line.partition(":")
        needed[_module_name(path)] = [*reversed(dependencies.split()), path]
    built_in = {_module_name(line) for line in (tree / "modules.builtin").read_text().splitlines()}
    order: dict[str, None] = {}
    for module in _MODULES:
        if module not in needed and module not in built_in:
            raise jars.HarnessUnavailableError(f"kernel {version} of this distribution has no module {module}")
        order.update(dict.fromkeys(needed.get(module, ())))
    modules = place / "modules"
    modules.mkdir()
    for path in order:
        shutil.copy(tree / path, modules)
    (modules / "order").write_text("".join(f"{Path(path).name}\n" for path in order))
    shutil.rmtree(place / "root" / "lib" / "modules")
    shutil.rmtree(place / "root" / "boot")


def _unpacked(image: bytes) -> bytes:
    """Return the kernel from its compressed image (Documentation/arch/x86/boot.rst): emulated unpacking takes 10 s."""
    sectors = image[0x1F1] or 4
    offset, length = (int.from_bytes(image[place : place + 4], "little") for place in (0x248, 0x24C))
    payload = image[(sectors + 1) * 512 + offset :][:length]
    if not payload.startswith(b"\xfd7zXZ\0"):
        raise jars.HarnessUnavailableError("the kernel of this distribution is not compressed by xz, as Debian 12's is")
    return lzma.LZMADecompressor(lzma.FORMAT_XZ).decompress(payload)


def _module_name(path: str) -> str:
    return Path(path).name.partition(".")[0].replace("-", "_")


def _run(command: list[str], what: str, folder: Path | None = None) -> str:
    run = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    if run.returncode != 0:
        raise jars.HarnessUnavailableError(
            f"could not {what} this machine's distribution: {(run.stdout + run.stderr).strip()[-2000:]}; {_HOW_ELSE}"
        )
    return run.stdout
