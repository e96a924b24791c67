"""Running a command in the guest."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.kafka import jars
from tests.rdma.guest import cpio
from tests.rdma.guest.packages import Parts, resolve

_HERE = Path(__file__).parent

# Seconds for a guest to start and to end, in addition to its command, when emulated on a busy machine.
_BOOT_SECONDS = 120.0
# Seconds for a test start of a machine on the real processor.
_PROBE_SECONDS = 10.0
# Seconds between SIGTERM and SIGKILL for a command at its limit.
_GRACE_SECONDS = 5

# All features that QEMU emulates except slow ones: REP MOVSB copies one byte at a time, and page tables of five
# levels add one to each walk.
_EMULATED = ("-cpu", "max,-la57,-erms,-fsrm")

# Variables of this machine's processes that have no meaning in the guest.
_NOT_INHERITED = ("TMPDIR", "LD_LIBRARY_PATH", "LD_PRELOAD")


class GuestError(Exception):
    """The guest ended without a result; the text has the end of its console."""


def run(
    command: Sequence[str],
    *,
    limit: float,
    output: Callable[[bytes], object],
    accelerator: str = "auto",
    environment: Mapping[str, str] | None = None,
    memory_mib: int = 2048,
) -> int:
    """Run ``command`` in a guest, in the current folder and with this process's environment, and return its exit code.

    The guest sees this machine's files, and everything that it writes is lost when it ends. ``output`` is called with
    the command's output as it arrives. After ``limit`` seconds the guest ends the command (exit code 124); a guest that
    does not end soon after is killed.

    accelerator
        "tcg": an emulated processor. "kvm": the real one. "auto": the real one if a guest starts on it.

    Raises:
        HarnessUnavailableError: this machine cannot run the guest.
        GuestError: it ended without a result.
    """
    parts = resolve()
    if accelerator == "auto":
        accelerator = "kvm" if starts_on_kvm(parts) else "tcg"
    with tempfile.TemporaryDirectory(prefix="aioproducer-guest-") as folder:
        job = Path(folder)
        (job / "run").write_text(_script(parts, command, limit, {**os.environ, **(environment or {})}))
        arguments = _qemu(parts, job, accelerator, memory_mib)
        finished = _watch(arguments, _libraries(parts), output, limit + _GRACE_SECONDS + _BOOT_SECONDS)
        code = job / "exit-code"
        if not code.exists():
            console = job / "console.log"
            output = console.read_text(errors="replace")[-3000:] if console.exists() else ""
            why = "ended" if finished else "was killed, as it took too long,"
            raise GuestError(f"the guest ({accelerator}) {why} without a result; its console:\n{output}")
        return int(code.read_text())


def starts_on_kvm(parts: Parts) -> bool:
    """Return whether a guest starts on the real processor, which the existence of /dev/kvm does not ensure.

    A failed start is tried only once after each boot of this machine: the file ``no-kvm`` in the cache has the boot's
    id.
    """
    if not os.access("/dev/kvm", os.R_OK | os.W_OK):
        return False
    boot = Path("/proc/sys/kernel/random/boot_id").read_text()
    hanging = jars.cache() / "no-kvm"
    if hanging.exists() and hanging.read_text() == boot:
        return False
    with tempfile.TemporaryDirectory(prefix="aioproducer-guest-") as folder:
        job = Path(folder)
        arguments = [*_qemu(parts, job, "kvm", 512), "-append", "console=ttyS0 quiet panic=-1 aioproducer.probe"]
        _watch(arguments, _libraries(parts), lambda _: None, _PROBE_SECONDS)
        console = job / "console.log"
        if console.exists() and b"GUEST starts" in console.read_bytes():
            return True
    hanging.parent.mkdir(parents=True, exist_ok=True)
    hanging.write_text(boot)
    return False


def _script(parts: Parts, command: Sequence[str], limit: float, environment: Mapping[str, str]) -> str:
    """Return the script that /bin/sh runs in the guest."""
    inherited = {
        name: value for name, value in environment.items() if name not in _NOT_INHERITED and name.isidentifier()
    }
    exports = [f"export {name}={shlex.quote(value)}" for name, value in inherited.items()]
    timeout = f"timeout --kill-after={_GRACE_SECONDS} {limit}"
    return "\n".join(
        [
            *exports,
            f"GUEST_PACKAGES={shlex.quote(str(parts.root))}",
            f". {shlex.quote(str(_HERE / 'setup'))}",
            f"cd {shlex.quote(os.getcwd())}",
            f"exec {timeout} {shlex.join(command)}",
            "",
        ]
    )


def _libraries(parts: Parts) -> dict[str, str]:
    modules = parts.root / "usr" / "lib" / "x86_64-linux-gnu" / "qemu"
    return {"LD_LIBRARY_PATH": parts.libraries, "QEMU_MODULE_DIR": str(modules)}


def _qemu(parts: Parts, job: Path, accelerator: str, memory_mib: int) -> list[str]:
    """Return the command that runs a guest; the folder ``job`` has its input and its results."""
    first = job / "initramfs"
    names = [path.name for path in parts.modules.iterdir()]
    files = {f"modules/{name}": (parts.modules / name).read_bytes() for name in names}
    files["bin/busybox"] = (parts.root / "bin" / "busybox").read_bytes()
    files["init"] = (_HERE / "init").read_bytes()
    # Their mount points.
    files |= {f"{name}/.keep": b"" for name in ("dev", "proc", "sys")}
    first.write_bytes(cpio.archive(files))
    share = parts.root / "usr" / "share"
    processor = (
        ["-accel", "kvm", "-cpu", "host"] if accelerator == "kvm" else ["-accel", "tcg,thread=multi", *_EMULATED]
    )
    return [
        *_dying_with_this_process(),
        str(parts.root / "usr" / "bin" / "qemu-system-x86_64"),
        *("-L", str(share / "qemu"), "-L", str(share / "seabios")),
        *("-M", "q35", *processor, "-m", str(memory_mib), "-smp", str(min(2, os.cpu_count() or 1))),
        *("-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"),
        *("-kernel", str(parts.kernel), "-initrd", str(first)),
        *("-append", "console=ttyS0 quiet panic=-1 mitigations=off"),
        *("-serial", f"file:{job / 'console.log'}"),
        # The command's output has a separate port from the kernel's messages.
        *("-device", "virtio-serial-pci", "-chardev", "stdio,id=output,signal=off"),
        *("-device", "virtserialport,chardev=output,name=output"),
        *("-device", "virtio-rng-pci"),
        *("-netdev", "user,id=network", "-device", "virtio-net-pci,netdev=network,romfile="),
        *_share("root", Path("/"), "readonly=on,multidevs=remap"),
        *_share("job", job, "readonly=off"),
    ]


def _dying_with_this_process() -> list[str]:
    return ["setpriv", "--pdeathsig", "KILL", "--"] if shutil.which("setpriv") else []


def _share(name: str, folder: Path, options: str) -> list[str]:
    return [
        *("-fsdev", f"local,id={name},path={folder},security_model=none,{options}"),
        *("-device", f"virtio-9p-pci,fsdev={name},mount_tag={name}"),
    ]


def _watch(
    arguments: Sequence[str], environment: Mapping[str, str], output: Callable[[bytes], object], limit: float
) -> bool:
    """Run QEMU for at most ``limit`` seconds; return whether it ended before."""
    qemu = subprocess.Popen(
        arguments,
        # At its end QEMU closes the command's output port.
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, **environment},
        start_new_session=True,
    )
    killed = threading.Event()

    def kill() -> None:
        killed.set()
        qemu.kill()

    timer = threading.Timer(limit, kill)
    timer.start()
    try:
        assert qemu.stdin is not None
        assert qemu.stdout is not None
        with qemu.stdin, qemu.stdout:
            while data := os.read(qemu.stdout.fileno(), 1 << 16):
                output(data)
        qemu.wait()
    finally:
        timer.cancel()
        timer.join()
        if qemu.poll() is None:
            qemu.kill()
            qemu.wait()
    return not killed.is_set()
