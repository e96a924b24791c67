"""Testing the wheels in dist/, each in a system without a compiler: a root made by debootstrap, entered by chroot.

    sudo python3 tests/fresh_root/wheels.py [WHEEL ...]
    sudo python3 tests/fresh_root/wheels.py --build 3.14=forky

Each manylinux wheel is installed with pip into a new virtual environment, by an unprivileged user. The modules must be
compiled, and the first stage of the demo must return every flight. A Python comes from Debian, or is copied from this
machine (`make test-versions` uses the same ones).

--build VERSION=SUITE runs `make wheels` for a Python that only a Debian release has, in a root with gcc, and copies the
wheel to dist/.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.fresh_root.run import REPOSITORY, FreshRootError, Root, _check_demo, _run, _timed, connect, why_not

DIST = REPOSITORY / "dist"
MIRROR = "http://deb.debian.org/debian"
# Debian releases by their version of Python; other versions are copied from this machine into a root of OLDEST.
SUITES = {"3.11": "bookworm", "3.13": "trixie", "3.14": "forky"}
OLDEST = "bookworm"
# Libraries of Debian 12 that a Python built on it needs.
LIBRARIES = "libssl3 libffi8 zlib1g libbz2-1.0 liblzma5 libsqlite3-0 libreadline8 libuuid1"

STATE = """
import aioproducer, importlib, pathlib, shutil
from aioproducer._build import COMPILED_MODULES
assert shutil.which("cc") is None and shutil.which("gcc") is None, "there is a compiler"
assert aioproducer.Producer.compiled, "the modules are not compiled"
files = [importlib.import_module(name).__file__ for name in COMPILED_MODULES]
assert all(file.endswith(".so") for file in files), files
libraries = list(pathlib.Path(aioproducer.__file__).parent.glob("libaioproducer-*.so"))
assert len(libraries) == 1, libraries
maps = pathlib.Path("/proc/self/maps").read_text()
assert str(libraries[0]) in maps, "the modules were loaded without the library of a profile-guided build"
print("compiled")
"""


def version_of(wheel: Path) -> str:
    """Return the version of CPython that a wheel is for, such as ``3.11``.

    Raises:
        FreshRootError: it is not a manylinux wheel for one CPython on x86-64.
    """
    found = re.fullmatch(r"aioproducer-[^-]+-cp3(\d+)-cp3\1-manylinux[\w.]*_x86_64\.whl", wheel.name)
    if not found:
        raise FreshRootError(f"{wheel.name} is not a manylinux wheel for one CPython on x86-64: run `make wheels`")
    return f"3.{found[1]}"


def search_paths(wheel: Path) -> set[str]:
    """Return absolute paths in which the wheel's modules search for libraries; other systems lack them."""
    with zipfile.ZipFile(wheel) as archive:
        files = [archive.read(name) for name in archive.namelist() if name.endswith(".so")]
    return {found.decode() for data in files for found in re.findall(rb"\0(/[^\0]*/lib[^\0/]*)\0", data)}


def interpreter(version: str) -> Path | None:
    """Return the prefix of a Python on this machine, outside /usr."""
    roots = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = [prefix for prefix in roots.glob(f"{version}.*") if (prefix / "bin" / f"python{version}").exists()]
    return max(found, default=None)


def _debootstrap(folder: Path, suite: str, packages: str) -> Root:
    # One script makes all releases; an older debootstrap does not know the names of newer ones.
    script = "/usr/share/debootstrap/scripts/sid"
    _run(["debootstrap", "--variant=minbase", "--include=ca-certificates", suite, str(folder), MIRROR, script])
    root = Root(folder)
    connect(root)
    install = "apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq --no-install-recommends "
    root.run(["sh", "-c", install + packages])
    root.run(["useradd", "--create-home", "newcomer"])
    return root


def _with_python(folder: Path, version: str) -> tuple[Root, str]:
    """Return a root without a compiler, and the path of a Python in it.

    Raises:
        FreshRootError: neither this machine nor Debian has that Python.
    """
    prefix = None if version in SUITES else interpreter(version)
    if prefix is not None:
        root = _debootstrap(folder, OLDEST, LIBRARIES)
        target = folder / str(prefix).lstrip("/")
        target.parent.mkdir(parents=True)
        shutil.copytree(prefix, target, symlinks=True, ignore=shutil.ignore_patterns("site-packages", "test"))
        for parent in target.relative_to(folder).parents:
            (folder / parent).chmod(0o755)
        return root, f"{prefix}/bin/python{version}"
    if version not in SUITES:
        raise FreshRootError(f"CPython {version} is neither in ~/.pyenv nor in a Debian release: {SUITES}")
    packages = f"python{version} python{version}-venv"
    return _debootstrap(folder, SUITES[version], packages), f"/usr/bin/python{version}"


def check(wheel: Path, scratch: Path) -> None:
    """Install a wheel in a system without a compiler, and run the first stage of the demo with it."""
    version = version_of(wheel)
    if paths := search_paths(wheel):
        raise FreshRootError(f"{wheel.name} searches for libraries in {paths}: build it with `make wheels`")
    root, python = _with_python(scratch / version, version)
    root.user, root.directory = "newcomer", "/home/newcomer"
    shutil.copy(wheel, root.path(wheel.name))
    # Without the package beside it, so that the demo uses the installed one.
    shutil.copytree(REPOSITORY / "examples", root.path("examples"), ignore=shutil.ignore_patterns("__pycache__"))
    root.run(["mkdir", "work"])
    pip = ["venv/bin/python", "-m", "pip", "install", "--quiet", "--only-binary", ":all:"]
    root.run([python, "-m", "venv", "venv"])
    _timed(f"CPython {version}: pip install", root, [*pip, f"{wheel.name}[demo]"])
    data = [*pip[:5], "--no-deps", "--requirement", "examples/demo/requirements.txt"]
    root.run(data)
    if "compiled" not in root.run(["venv/bin/python", "-c", STATE]):
        raise FreshRootError(f"{wheel.name} did not report its build")
    _check_demo(_timed(f"CPython {version}: the demo's first stage", root, ["venv/bin/python", "examples/demo"]), 1)


def build(version: str, suite: str, scratch: Path) -> None:
    """Make the wheel for a Debian release's Python there, and copy it to dist/."""
    packages = f"python{version} python{version}-venv python{version}-dev gcc libc6-dev make git"
    root = _debootstrap(scratch / suite, suite, packages)
    root.user, root.directory = "newcomer", "/home/newcomer"
    _run(["git", "-C", str(REPOSITORY), "bundle", "create", "-q", str(root.path("aioproducer.bundle")), "HEAD"])
    root.run(["git", "clone", "--quiet", "aioproducer.bundle", "aioproducer"])
    root.directory += "/aioproducer"
    _timed(
        f"CPython {version}: make wheels",
        root,
        ["make", "wheels", f"WHEEL_VERSIONS={version}", f"PYTHON=python{version}"],
    )
    made = list(root.path("dist").glob("*.whl"))
    if not made:
        raise FreshRootError(f"`make wheels` made no wheel for CPython {version} in Debian {suite}")
    DIST.mkdir(exist_ok=True)
    for wheel in made:
        print(shutil.copy(wheel, DIST))


def main() -> int:
    parser = argparse.ArgumentParser(description="The wheels in dist/, in systems without a compiler.")
    parser.add_argument("wheels", nargs="*", type=Path, help="default: all in dist/")
    parser.add_argument("--build", metavar="VERSION=SUITE", help="make a wheel in a Debian release instead")
    arguments = parser.parse_args()
    reason = why_not()
    if reason is not None:
        print(f"fresh root: {reason}", file=sys.stderr)
        return 1
    wheels = arguments.wheels or sorted(DIST.glob("*.whl"))
    try:
        if not wheels and not arguments.build:
            raise FreshRootError(f"there is no wheel in {DIST}: run `make wheels`")
        with tempfile.TemporaryDirectory(prefix="fresh-root-") as name:
            if arguments.build:
                version, _, suite = arguments.build.partition("=")
                build(version, suite or SUITES.get(version, ""), Path(name))
            else:
                for wheel in wheels:
                    check(wheel, Path(name))
    except (FreshRootError, subprocess.SubprocessError) as failure:
        print(f"fresh root: {failure}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
