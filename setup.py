"""Compiles the hot modules where Cython and a C compiler are there: all, or none, and then they run as they are.

``AIOPRODUCER_PURE=1`` builds without them, with ``AIOPRODUCER_REQUIRE_COMPILED=1`` a build that cannot compile them
fails. ``CC``, ``CFLAGS`` and ``LDFLAGS`` are the compiler's. Without ``CFLAGS``, `LEVELS` says how much each module is
optimised.

An sdist carries the C files that Cython makes of the modules, in ``translated/``. A build from it does not run Cython,
unless a source has been changed. A build from a checkout does.

``AIOPRODUCER_PROFILE_GUIDED=1`` compiles them twice: once so that they count which branches are taken while
``training.py`` works with them, and once more with what was counted, which keeps together what is run together: on
Linux over all modules, in one library. That is for gcc, and where the package's dependencies are installed (pip's
``--no-build-isolation``); elsewhere it fails.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import runpy
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.sdist import sdist
from setuptools.errors import BaseError, CCompilerError

ROOT = Path(__file__).resolve().parent
BUILD = runpy.run_path(str(ROOT / "aioproducer" / "_build.py"))
GUIDED = os.environ.get("AIOPRODUCER_PROFILE_GUIDED", "0") not in ("", "0")
# Who wants the fastest is not to get the slowest, with a word that pip does not show.
REQUIRED = GUIDED or os.environ.get("AIOPRODUCER_REQUIRE_COMPILED", "0") not in ("", "0")
EXTENSION_SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")
# What a profile-guided build has the modules' code in.
LIBRARY = f"libaioproducer-{sysconfig.get_config_var('SOABI')}.so"
# What an sdist has the modules' C files in, and the file beside them that says what they were made from.
TRANSLATED = "translated"
ORIGIN = "origin.json"

DIRECTIVES = {
    "language_level": 3,
    # The types stand in the .pxd files: annotations mean to Python what they always mean.
    "annotation_typing": False,
    # What is None raises AttributeError, as in Python, and does not crash.
    "nonecheck": True,
    "embedsignature": False,
    # They repeat the Python source.
    "emit_code_comments": False,
    # What is for the uncompiled module alone is no mistake.
    "warn.unreachable": False,
    # Classes that are pickled have a __reduce__. Cython's own would be a fifth of the code to compile.
    "auto_pickle": False,
}

# gcc mistakes Cython's handling of None for an access to the digits of an int, which a check prevents.
COMPILER_OPTIONS = ["-Wno-array-bounds"]
# The build without a profile compiles at these levels, the modules that are not listed at DEFAULT_LEVEL. One level for
# all (-O3) takes about twice the CPU time; `python -m bench.instructions` shows what a level costs.
LEVELS = {
    # Small functions that run for each record, which are worth inlining.
    "-O3": ("_client.hot_path", "core.outcomes.future_type", "record", "wire.record"),
    # The rest of what runs for each record.
    "-O2": (
        "core.batching.accumulator",
        "core.batching.batch",
        "core.fetching.columns",
        "core.fetching.records",
        "core.outcomes.delivery",
    ),
    # What runs for each batch, and for columns of records: half of the time of -O2. What runs for each request is left
    # out: node, sender and connection alone would take 10 s more.
    "-O1 -finline-small-functions": (
        "core.batching.buffer_pool",
        "core.batching.completion",
        "core.batching.partition_queue",
        "core.batching.ready",
        "core.columns.appending",
        "core.columns.batch_runs",
        "core.columns.binary_column",
        "core.columns.record_columns",
        "core.fetching.buffer",
        "core.fetching.memory",
        "core.fetching.partition",
        "core.fetching.turns",
        "interceptors",
        "io.outcome_reporter",
        "io.produce",
        "partitioner",
        "protocol.produce_frames",
        "transport.socket_transport",
        "wire.crc32c",
        "wire.murmur2",
        "wire.record_batch",
        "wire.varint",
    ),
}
# Half of the time of -O1.
DEFAULT_LEVEL = "-Og"
OWN_FLAGS = "CFLAGS" in os.environ
if not OWN_FLAGS:
    # CPython's own flags ask for symbols, which make the modules six times as large, and for warnings, which take an
    # eighth of the time; tests/builds reads these in a build with flags of its own.
    COMPILER_OPTIONS += ["-g0", "-w"]

COUNTING = ["-fprofile-generate"]
# What training never comes to is compiled as ever; what counts along in other threads may be a little off.
COUNTED = ["-fprofile-use", "-fprofile-partial-training", "-fprofile-correction", "-Wno-missing-profile"]


class NotCompiledError(Exception):
    """Why the modules are not compiled here."""


def unsupported() -> str | None:
    """Why this Python runs the sources, whatever there is to compile them with."""
    if platform.python_implementation() != "CPython":
        return f"{platform.python_implementation()} runs the sources faster than extensions"
    if sys.byteorder != "little":
        return "nobody has tested the compiled modules on a big-endian machine"
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return "the compiled modules would turn the interpreter's lock on again"
    return None


class CompileAllOrNone(build_ext):
    """A compiled module works with its compiled neighbours alone: where one is missing, none may be left."""

    def finalize_options(self) -> None:
        super().finalize_options()
        if self.parallel is None:
            self.parallel = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()

    def run(self) -> None:
        super().run()
        self._remove_others(Path(self.build_lib))
        if self.inplace:
            self._remove_others(ROOT)

    def build_extensions(self) -> None:
        began = time.time_ns()
        cpu_before = _cpu_seconds()
        try:
            self._try_compiler(COUNTED if GUIDED else [])
            translation = stored_translation()
            self._announce(translation)
            if translation is None:
                sources = translate(self.extensions, force=bool(self.force))
            else:
                sources = {extension.name: _stored(extension.name) for extension in self.extensions}
            for extension in self.extensions:
                extension.sources = [sources[extension.name]]
            if GUIDED:
                self._train()
            if GUIDED and sys.platform == "linux":
                self._build_library()
            else:
                super().build_extensions()
        except (NotCompiledError, BaseError, CCompilerError) as error:
            if REQUIRED:
                raise
            print(f"aioproducer: its modules are not compiled and run slower: {error}", file=sys.stderr)
            self.extensions = []
        else:
            print(f"aioproducer: compiled, in {_cpu_seconds() - cpu_before:.0f} s of CPU time", flush=True)
        paths = [Path(self.get_ext_fullpath(extension.name)) for extension in self.extensions]
        if not GUIDED and all(path.stat().st_mtime_ns > began for path in paths):
            # An earlier build's: none of the modules has its code there any more.
            self._library().unlink(missing_ok=True)
        for extension, path in zip(self.extensions, paths, strict=True):
            # As old as what was compiled: a source that changed meanwhile is newer.
            for made in (*map(Path, extension.sources), path):
                if made.stat().st_mtime_ns > began:
                    os.utime(made, ns=(began, began))

    def _announce(self, translation: str | None) -> None:
        """Print what the build does, and how to avoid it. pip shows it with -v, or if the build fails."""
        source = f"from the C files of this sdist ({translation})" if translation else "once Cython has translated them"
        if GUIDED:
            cost = "twice, with a run of training.py in between"
        else:
            cost = f"{'one to two' if translation else 'two'} minutes of CPU time"
        print(
            f"aioproducer: compiling {len(self.extensions)} modules, those that changed, in {self.parallel or 1} "
            f"processes, {source}: {cost}.\n"
            f"aioproducer: {BUILD['PURE_VARIABLE']}=1 installs the sources, which run slower. A wheel of a release "
            "needs no compilation: pip install --only-binary aioproducer aioproducer",
            flush=True,
        )

    def _try_compiler(self, options: list[str]) -> None:
        """Find out at once that there is no compiler, that it has no Python.h, or that it does not know the options."""
        folder = Path(self.build_temp)
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / "probe.c"
        probe.write_text("#include <Python.h>\n")
        try:
            self.compiler.compile([str(probe)], extra_postargs=options)
        except CCompilerError as error:
            command = self.compiler.compiler_so[0]
            raise NotCompiledError(
                f"{command} cannot be run or does not find Python.h (Debian, Ubuntu: apt install gcc python3-dev)"
                + (f", or it does not take {' '.join(options)}, which gcc does" if options else "")
            ) from error

    def _train(self) -> None:
        """Compile the modules so that they count, work with them, and have the compiler use the counts from here on."""
        folder = Path(self.build_temp).absolute() / "training"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(
            ROOT / "aioproducer", folder / "aioproducer", ignore=shutil.ignore_patterns("*.so", "__pycache__")
        )
        for counts in Path(self.build_temp).rglob("*.gcda"):
            counts.unlink()
        build_lib, self.build_lib = self.build_lib, str(folder)
        for extension in self.extensions:
            extension.extra_compile_args, extension.extra_link_args = [*COMPILER_OPTIONS, *COUNTING], COUNTING
        super().build_extensions()
        self.build_lib = build_lib
        for extension in self.extensions:
            extension.extra_compile_args, extension.extra_link_args = [*COMPILER_OPTIONS, *COUNTED], []
        # What stands there from before was not compiled with these counts.
        self.force = True
        # -P: not with the package that lies beside it.
        command = [sys.executable, "-P", str(ROOT / "training.py")]
        environment = {**os.environ, "PYTHONPATH": str(folder), "AIOPRODUCER_PURE": "0"}
        if subprocess.run(command, env=environment, check=False).returncode:
            raise NotCompiledError(
                "training.py failed, see above. It needs what the package depends on: pip install --no-build-isolation"
            )
        if not any(Path(self.build_temp).rglob("*.gcda")):
            raise NotCompiledError(f"nothing was counted in training: {self.compiler.compiler_so[0]} is not gcc")

    def _build_library(self) -> None:
        """Link all modules into one library, and for each module a file that has nothing but its name for Python.

        The linker puts what gcc calls hot into one place, library by library. In 40 of them it is spread over as many,
        each with its own table of what it calls: a send that is awaited alone meets all that cold.
        """
        library = self._library()
        library.parent.mkdir(parents=True, exist_ok=True)
        with ThreadPoolExecutor(self.parallel) as pool:
            objects = [made for all_made in pool.map(self._compile_for_library, self.extensions) for made in all_made]
        self.compiler.link_shared_object(objects, str(library), extra_postargs=[f"-Wl,-soname,{LIBRARY}"])
        for extension in self.extensions:
            source = Path(self.build_temp, "names", f"{extension.name}.c")
            source.parent.mkdir(exist_ok=True)
            own = _initializer(extension.name)
            source.write_text(
                f"#include <Python.h>\nPyMODINIT_FUNC {own}(void);\n"
                f"PyMODINIT_FUNC {_python_s_initializer(extension.name)}(void) {{ return {own}(); }}\n"
            )
            path = Path(self.get_ext_fullpath(extension.name))
            above = "/..".join(["$ORIGIN", *["" for _ in path.parent.relative_to(library.parent).parts]])
            self.compiler.link_shared_object(
                self.compiler.compile([str(source)], extra_postargs=COMPILER_OPTIONS),
                str(path),
                extra_postargs=[str(library), f"-Wl,-rpath,{above}"],
            )

    def _library(self) -> Path:
        return Path(self.build_lib, "aioproducer", LIBRARY)

    def get_outputs(self) -> list[str]:
        library = self._library()
        if not library.exists():
            return list(super().get_outputs())
        return [*super().get_outputs(), str(ROOT / "aioproducer" / LIBRARY if self.inplace else library)]

    def copy_extensions_to_source(self) -> None:
        super().copy_extensions_to_source()
        library, copy = self._library(), ROOT / "aioproducer" / LIBRARY
        # Removed, and not written over: it may be loaded.
        copy.unlink(missing_ok=True)
        if library.exists():
            self.copy_file(str(library), str(copy))

    def _compile_for_library(self, extension: Extension) -> list[str]:
        # Python's own name for it is made of the last part of the module's name, which two of them share.
        renamed = [(_python_s_initializer(extension.name), _initializer(extension.name))]
        made: list[str] = self.compiler.compile(
            extension.sources,
            output_dir=self.build_temp,
            macros=renamed,
            debug=self.debug,
            extra_postargs=extension.extra_compile_args,
        )
        return made

    def _remove_others(self, folder: Path) -> None:
        """Remove compiled modules that an earlier build left and this one does not have."""
        made = {folder / self.get_ext_filename(extension.name) for extension in self.extensions or []}
        for compiled in (folder / "aioproducer").rglob(f"*{EXTENSION_SUFFIX}"):
            if compiled not in made:
                compiled.unlink()


class SdistWithTranslation(sdist):
    """An sdist has the modules in C too: translating them takes half as long as compiling them."""

    def make_release_tree(self, base_dir: str, files: Sequence[str]) -> None:
        super().make_release_tree(base_dir, files)
        print("aioproducer: translating its modules to C, for the sdist", flush=True)
        try:
            sources = translate(modules_to_compile())
        except NotCompiledError as error:
            raise SystemExit(f"aioproducer: an sdist needs the C files of its modules: {error}") from error
        folder = Path(base_dir, TRANSLATED)
        for name, source in sources.items():
            target = Path(base_dir, _stored(name))
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
        import Cython

        origin = {"translator": f"Cython {Cython.__version__}", "digest": _digest(Path(base_dir))}
        (folder / ORIGIN).write_text(json.dumps(origin, indent=1) + "\n")


def translate(extensions: Sequence[Extension], *, force: bool = False) -> dict[str, str]:
    """Have Cython write modules in C, those of which a source has changed; the C file of each.

    Raises:
        NotCompiledError: there is no Cython, or it cannot translate them.
    """
    try:
        import Cython
        from Cython.Build import cythonize
        from Cython.Compiler.Errors import CompileError
    except ImportError as error:
        raise NotCompiledError(f"Cython cannot be imported ({error})") from error
    folder = Path("build", f"cython-{Cython.__version__}")
    changed = Path(__file__).stat().st_mtime_ns
    for translated in folder.rglob("*.c"):
        if translated.stat().st_mtime_ns < changed:
            translated.unlink()
    try:
        made = cythonize(
            extensions,
            compiler_directives=DIRECTIVES,
            build_dir=str(folder),
            force=force,
            quiet=True,
        )
    except CompileError as error:
        raise NotCompiledError(f"Cython {Cython.__version__} cannot translate them") from error
    sources: dict[str, str] = {}
    for extension in made:
        (sources[extension.name],) = extension.sources
    return sources


def stored_translation() -> str | None:
    """What translated the C files that are here; None if there are none, or if they are of other sources."""
    try:
        origin = json.loads((ROOT / TRANSLATED / ORIGIN).read_text())
    except FileNotFoundError:
        return None
    return origin["translator"] if origin["digest"] == _digest(ROOT) else None


def _stored(name: str) -> str:
    """The C file of a module in an sdist."""
    return f"{TRANSLATED}/{name.replace('.', '/')}.c"


def _digest(root: Path) -> str:
    """A digest of all that Cython's C files are made from."""
    digest = hashlib.sha256(json.dumps(DIRECTIVES, sort_keys=True).encode())
    paths = [name.replace(".", "/") + ".py" for name in BUILD["COMPILED_MODULES"]]
    paths += sorted(path.relative_to(root).as_posix() for path in (root / "aioproducer").rglob("*.pxd"))
    for path in paths:
        digest.update(f"{path}\n".encode() + hashlib.sha256((root / path).read_bytes()).digest())
    return digest.hexdigest()


def _python_s_initializer(name: str) -> str:
    """The function that Python looks for in a module's file."""
    return f"PyInit_{name.rpartition('.')[2]}"


def _initializer(name: str) -> str:
    """The function that makes the module, in the library of all."""
    return f"PyInit_{name.replace('.', '_')}"


def _cpu_seconds() -> float:
    """CPU time of this process and of the ended processes that it started."""
    return sum(os.times()[:4])


def _options(name: str) -> list[str]:
    """The compiler's options for a module. A profile-guided build leaves levels to the profile."""
    if OWN_FLAGS or GUIDED:
        return COMPILER_OPTIONS
    short = name.removeprefix("aioproducer.")
    level = next((level for level, names in LEVELS.items() if short in names), DEFAULT_LEVEL)
    return [*COMPILER_OPTIONS, *level.split()]


def extensions() -> list[Extension]:
    """The modules to compile; none where that is not wanted or not possible."""
    if BUILD["is_pure_wanted"]():
        return []
    reason = unsupported()
    if reason is not None:
        if REQUIRED:
            raise SystemExit(f"aioproducer: its modules cannot be compiled: {reason}")
        print(f"aioproducer: its modules are not compiled: {reason}", file=sys.stderr)
        return []
    modules = BUILD["COMPILED_MODULES"]
    unknown = {f"aioproducer.{name}" for names in LEVELS.values() for name in names} - {*modules}
    if unknown:
        raise SystemExit(
            f"setup.py: LEVELS names modules that are not compiled: {', '.join(sorted(unknown))}. "
            "Remove them, or add them to COMPILED_MODULES in aioproducer/_build.py."
        )
    return modules_to_compile()


def modules_to_compile() -> list[Extension]:
    """All compiled modules, with their sources in Python."""
    return [
        Extension(name, [name.replace(".", "/") + ".py"], extra_compile_args=_options(name))
        for name in BUILD["COMPILED_MODULES"]
    ]


setup(ext_modules=extensions(), cmdclass={"build_ext": CompileAllOrNone, "sdist": SdistWithTranslation})
