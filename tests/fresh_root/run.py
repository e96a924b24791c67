"""The demo on a machine with a minimal system: a root made by debootstrap, entered by chroot.

    sudo python3 tests/fresh_root/run.py [--only machine|dockerfile] [--suite]

machine      installs Python, git and make, clones the repository's HEAD, runs `make demo` twice (and, with --suite,
             `make test`), as an unprivileged user, and prints how long each took
dockerfile   executes the steps of the Dockerfile, unchanged, and then its command

Both begin with the same minimal system. Nothing stays mounted after a step. pip's configuration here (an index, a
certificate) is passed by environment variables and files under /run, and is no part of the project.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
NEEDED = ["python3", "python3-venv", "git", "make", "ca-certificates"]
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
FLIGHTS = "336,776"
PROXIES = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")


class FreshRootError(Exception):
    """A step failed."""


def why_not() -> str | None:
    """Return why this cannot run here; None if it can."""
    if os.geteuid() != 0:
        return "chroot needs root"
    missing = [tool for tool in ("debootstrap", "chroot", "unshare", "git") if shutil.which(tool) is None]
    return f"not installed: {', '.join(missing)}" if missing else None


def _run(command: list[str], **options: object) -> str:
    run = subprocess.run(command, capture_output=True, text=True, check=False, **options)  # type: ignore[call-overload]  # passed on
    if run.returncode != 0:
        raise FreshRootError(f"{shlex.join(command)} ended with {run.returncode}:\n{run.stdout}{run.stderr}")
    printed: str = run.stdout
    return printed


@dataclass
class Root:
    """A system in a folder."""

    folder: Path
    environment: dict[str, str] = field(default_factory=dict)
    user: str = "root"
    directory: str = "/"

    def run(self, command: list[str]) -> str:
        """Run a command to its end as the current user; processes that it leaves running are killed.

        Raises:
            FreshRootError: it failed; the text has its output.
        """
        name, user, group, home = self._account()
        environment = {"PATH": PATH, "HOME": home, "USER": name, "LANG": "C.UTF-8", **self.environment}
        # /proc, terminals and all processes belong to the step and end with it.
        namespace = ["unshare", "--mount", "--pid", "--fork", "--kill-child", f"--mount-proc={self.folder}/proc"]
        terminals = ["/bin/sh", "-c", 'mount -t devpts devpts "$0/dev/pts" && exec "$@"', str(self.folder)]
        into = ["chroot", f"--userspec={user}:{group}", str(self.folder)]
        there = ["/bin/sh", "-c", 'cd "$0" && exec "$@"', self.directory, *command]
        return _run([*namespace, *terminals, *into, *there], env=environment, stdin=subprocess.DEVNULL)

    def _account(self) -> tuple[str, int, int, str]:
        name = self.user.partition(":")[0]
        for line in (self.folder / "etc" / "passwd").read_text().splitlines():
            account, _, user, group, _, home, _ = line.split(":")
            if name in (account, user):
                return account, int(user), int(group), home
        raise FreshRootError(f"there is no user {self.user}")

    def path(self, inside: str) -> Path:
        return self.folder / str(Path("/", self.directory, inside)).lstrip("/")


def pip_settings() -> dict[str, str]:
    """Return pip's configuration on this machine, as pip's environment variables."""
    listed = _run([sys.executable, "-m", "pip", "config", "list"])
    found = re.findall(r"^(?:global|user|site|install|:env:)\.([\w-]+)='(.*)'$", listed, re.MULTILINE)
    return {f"PIP_{name.upper().replace('-', '_')}": value for name, value in found}


def connect(root: Root) -> None:
    """Give the root this machine's access to the network."""
    shutil.copy("/etc/resolv.conf", root.folder / "etc" / "resolv.conf")
    # Written by an installer, but not by debootstrap.
    (root.folder / "etc" / "hosts").write_text("127.0.0.1 localhost\n::1 localhost ip6-localhost\n")
    root.environment.update({name: os.environ[name] for name in PROXIES if name in os.environ})
    for name, value in pip_settings().items():
        if value.startswith("/"):
            source, target = Path(value), root.folder / "run" / "pip" / name
            target.parent.mkdir(exist_ok=True)
            if source.is_dir():
                shutil.copytree(source, target)
            elif source.is_file():
                shutil.copy(source, target)
            else:
                continue
            value = f"/run/pip/{name}"
        root.environment[name] = value


def _timed(label: str, root: Root, command: list[str]) -> str:
    began = time.monotonic()
    printed = root.run(command)
    print(f"{label:<44}{time.monotonic() - began:7.1f} s", flush=True)
    return printed


def _check_demo(printed: str, stages: int = 2) -> None:
    rows = re.findall(r"^ +all +(\S+) +(\S+) +yes *$", printed, re.MULTILINE)
    if rows.count((FLIGHTS, FLIGHTS)) != stages:
        raise FreshRootError(
            f"the demo did not say in {stages} stages that all {FLIGHTS} flights came back:\n{printed}"
        )


def _check_nothing_runs(root: Root) -> None:
    """Wait until no process is left in the root, so that no file there is open."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            where = os.readlink(process / "root")
        except OSError:
            continue
        if where == str(root.folder):
            raise FreshRootError(f"process {process.name} is left running")


def machine(root: Root, suite: bool) -> None:
    """Prepare a new machine with Python, git and make, clone, and run the two commands."""
    install = "apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq --no-install-recommends "
    _timed("apt-get install " + " ".join(NEEDED), root, ["sh", "-c", install + " ".join(NEEDED)])
    root.run(["useradd", "--create-home", "newcomer"])
    root.user, root.directory = "newcomer", "/home/newcomer"
    _run(["git", "-C", str(REPOSITORY), "bundle", "create", "-q", str(root.path("aioproducer.bundle")), "HEAD"])
    _timed("git clone", root, ["git", "clone", "--quiet", "aioproducer.bundle", "aioproducer"])
    root.directory += "/aioproducer"
    _check_demo(_timed("make demo, the first time", root, ["make", "demo"]))
    printed = _timed("make demo SPARK=no, the second time", root, ["make", "demo", "SPARK=no"])
    _check_demo(printed, 1)
    print(printed)
    if suite:
        print(_timed("make test", root, ["make", "test"]).splitlines()[-1])
    _check_nothing_runs(root)


def instructions(dockerfile: str) -> Iterator[tuple[str, str]]:
    """Return the instructions of a Dockerfile: name and the rest, with continued lines joined."""
    lines = [line for line in dockerfile.splitlines() if not line.lstrip().startswith("#")]
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        if line.strip():
            name, _, rest = line.strip().partition(" ")
            yield name.upper(), rest.strip()


def base_suite(dockerfile: str) -> str:
    """Return the Debian release that the image is based on.

    Raises:
        FreshRootError: it is based on another image, which debootstrap cannot make.
    """
    for name, rest in instructions(dockerfile):
        release = re.fullmatch(r"debian:(\w+)-slim", rest)
        if name == "FROM" and release:
            return release[1]
    raise FreshRootError("the Dockerfile does not begin with FROM debian:RELEASE-slim")


def _ignored(path: str, patterns: list[str]) -> bool:
    parents = [path, *(str(parent) for parent in Path(path).parents)]
    return any(fnmatch.fnmatch(each, pattern.removeprefix("**/")) for pattern in patterns for each in parents) or any(
        fnmatch.fnmatch(part, pattern[3:])
        for pattern in patterns
        if pattern.startswith("**/")
        for part in path.split("/")
    )


def _copy_context(root: Root, context: Path, arguments: list[str]) -> None:
    owners = [argument.removeprefix("--chown=") for argument in arguments if argument.startswith("--chown=")]
    plain = [argument for argument in arguments if not argument.startswith("--")]
    if plain != [".", "."]:
        raise FreshRootError(f"only COPY . . is understood, not {arguments}")
    lines = (context / ".dockerignore").read_text().splitlines()
    patterns = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    owner = Root(root.folder, user=owners[0]) if owners else Root(root.folder)
    _, user, group, _ = owner._account()
    for source in sorted(context.rglob("*")):
        name = source.relative_to(context).as_posix()
        if not _ignored(name, patterns):
            target = root.path(name)
            if source.is_dir() and not source.is_symlink():
                target.mkdir(exist_ok=True)
            else:
                shutil.copy2(source, target, follow_symlinks=False)
            os.chown(target, user, group, follow_symlinks=False)


def dockerfile(root: Root, scratch: Path) -> None:
    """Run the steps of the Dockerfile, and its command."""
    context = scratch / "context"
    _run(["git", "clone", "--quiet", str(REPOSITORY), str(context)])
    command: list[str] | None = None
    for name, rest in instructions((context / "Dockerfile").read_text()):
        if name == "RUN":
            _timed(f"RUN {' '.join(rest.split())[:36]}", root, ["/bin/sh", "-c", rest])
        elif name == "COPY":
            _copy_context(root, context, rest.split())
        elif name == "USER":
            root.user = rest
        elif name == "WORKDIR":
            root.directory = rest
            root.path(".").mkdir(parents=True, exist_ok=True)
        elif name == "ENV":
            variable, _, value = rest.partition("=")
            root.environment[variable] = value
        elif name == "CMD":
            command = json.loads(rest)
        elif name != "FROM":
            raise FreshRootError(f"nothing here executes {name} {rest}")
    if command is None:
        raise FreshRootError("the Dockerfile has no CMD")
    if root._account()[1] == 0:
        raise FreshRootError("the Dockerfile's command would run as root")
    size = _run(["du", "-sxm", str(root.folder)]).split()[0]
    print(f"{'size of everything':<44}{size:>7} MB")
    _check_demo(_timed(f"CMD {shlex.join(command)}", root, command))
    _check_nothing_runs(root)


def main() -> int:
    parser = argparse.ArgumentParser(description="The demo, on a machine that has nothing.")
    parser.add_argument("--only", choices=["machine", "dockerfile"], help="default: both, one after the other")
    parser.add_argument("--suite", action="store_true", help="on the machine, also `make test`")
    parser.add_argument("--mirror", default="http://deb.debian.org/debian", help="default: %(default)s")
    arguments = parser.parse_args()
    reason = why_not()
    if reason is not None:
        print(f"fresh root: {reason}", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory(prefix="fresh-root-") as name:
        scratch = Path(name)
        try:
            suite = base_suite((REPOSITORY / "Dockerfile").read_text())
            began = time.monotonic()
            base = scratch / "base"
            _run(["debootstrap", "--variant=minbase", suite, str(base), arguments.mirror])
            print(f"{'debootstrap ' + suite:<44}{time.monotonic() - began:7.1f} s", flush=True)
            for what in [arguments.only] if arguments.only else ["machine", "dockerfile"]:
                print(f"-- {what}", flush=True)
                root = Root(scratch / what)
                _run(["cp", "--archive", "--reflink=auto", str(base), str(root.folder)])
                connect(root)
                if what == "machine":
                    machine(root, arguments.suite)
                else:
                    dockerfile(root, scratch)
        except FreshRootError as failure:
            print(f"fresh root: {failure}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
