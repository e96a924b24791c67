"""Compiles the hot modules where Cython and a C compiler are there: all, or none, and then they run as they are.

``AIOPRODUCER_PURE=1`` builds without them, with ``AIOPRODUCER_REQUIRE_COMPILED=1`` a build that cannot compile them
fails. ``CC``, ``CFLAGS`` and ``LDFLAGS`` are the compiler's as ever.

``AIOPRODUCER_PROFILE_GUIDED=1`` compiles them twice: once so that they count which branches are taken while
``training.py`` works with them, and once more with what was counted, which keeps together what is run together: on
Linux over all modules, in one library. That is for gcc, and where the package's dependencies are installed (pip's
``--no-build-isolation``); elsewhere it fails.
"""

from __future__ import annotations

import os
import platform
import runpy
import shutil
import subprocess
import sys
import sysconfig
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import BaseError, CCompilerError

ROOT = Path(__file__).resolve().parent
BUILD = runpy.run_path(str(ROOT / "aioproducer" / "_build.py"))
GUIDED = os.environ.get("AIOPRODUCER_PROFILE_GUIDED", "0") not in ("", "0")
# Who wants the fastest is not to get the slowest, with a word that pip does not show.
REQUIRED = GUIDED or os.environ.get("AIOPRODUCER_REQUIRE_COMPILED", "0") not in ("", "0")
EXTENSION_SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")
# What a profile-guided build has the modules' code in.
LIBRARY = f"libaioproducer-{sysconfig.get_config_var('SOABI')}.so"

DIRECTIVES = {
    "language_level": 3,
    # The types stand in the .pxd files: annotations mean to Python what they always mean.
    "annotation_typing": False,
    # What is None raises AttributeError, as in Python, and does not crash.
    "nonecheck": True,
    "embedsignature": False,
    # What is for the uncompiled module alone is no mistake.
    "warn.unreachable": False,
}

# gcc takes what Cython does with None for an access to the digits of an int, behind a check that it is one.
COMPILER_OPTIONS = ["-Wno-array-bounds"]
if "CFLAGS" not in os.environ:
    # CPython's own flags ask for symbols, which make the modules six times as large.
    COMPILER_OPTIONS.append("-g0")

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
        try:
            self._try_compiler(COUNTED if GUIDED else [])
            self._translate()
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
        paths = [Path(self.get_ext_fullpath(extension.name)) for extension in self.extensions]
        if not GUIDED and all(path.stat().st_mtime_ns > began for path in paths):
            # An earlier build's: none of the modules has its code there any more.
            self._library().unlink(missing_ok=True)
        for extension, path in zip(self.extensions, paths, strict=True):
            # As old as what was compiled: a source that changed meanwhile is newer.
            for made in (*map(Path, extension.sources), path):
                if made.stat().st_mtime_ns > began:
                    os.utime(made, ns=(began, began))

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

    def _translate(self) -> None:
        """Have Cython write the modules in C, those of which a source has changed."""
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
                self.extensions,
                compiler_directives=DIRECTIVES,
                build_dir=str(folder),
                force=bool(self.force),
                quiet=True,
            )
        except CompileError as error:
            raise NotCompiledError(f"Cython {Cython.__version__} cannot translate them") from error
        sources = {extension.name: extension.sources for extension in made}
        for extension in self.extensions:
            extension.sources = sources[extension.name]

    def _remove_others(self, folder: Path) -> None:
        """Remove compiled modules that an earlier build left and this one does not have."""
        made = {folder / self.get_ext_filename(extension.name) for extension in self.extensions or []}
        for compiled in (folder / "aioproducer").rglob(f"*{EXTENSION_SUFFIX}"):
            if compiled not in made:
                compiled.unlink()


def _python_s_initializer(name: str) -> str:
    """The function that Python looks for in a module's file."""
    return f"PyInit_{name.rpartition('.')[2]}"


def _initializer(name: str) -> str:
    """The function that makes the module, in the library of all."""
    return f"PyInit_{name.replace('.', '_')}"


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
    return [
        Extension(name, [name.replace(".", "/") + ".py"], extra_compile_args=COMPILER_OPTIONS)
        for name in BUILD["COMPILED_MODULES"]
    ]


setup(ext_modules=extensions(), cmdclass={"build_ext": CompileAllOrNone})
