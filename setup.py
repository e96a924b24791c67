"""Compiles the hot modules where Cython and a C compiler are there; without them they run as they are.

``AIOPRODUCER_PURE=1`` builds without them. ``CFLAGS`` and ``LDFLAGS`` are the compiler's as ever.
"""

from __future__ import annotations

import runpy
from pathlib import Path

from setuptools import Extension, setup

ROOT = Path(__file__).parent
BUILD = runpy.run_path(str(ROOT / "aioproducer" / "build.py"))

DIRECTIVES = {
    "language_level": 3,
    # The types stand in the .pxd files: annotations mean to Python what they always mean.
    "annotation_typing": False,
    # What is None raises AttributeError, as in Python, and does not crash.
    "nonecheck": True,
    "embedsignature": False,
}


def extensions() -> list[Extension]:
    """The modules to compile; none where that is not wanted or not possible."""
    if BUILD["is_pure_wanted"]():
        return []
    try:
        from Cython.Build import cythonize
    except ImportError:
        return []
    modules = [
        # Optional: where the compiler fails, or there is none, the module stays as it is.
        Extension(name, [name.replace(".", "/") + ".py"], extra_compile_args=["-g0"], optional=True)
        for name in BUILD["COMPILED_MODULES"]
    ]
    return cythonize(modules, compiler_directives=DIRECTIVES, build_dir="build/cython")


setup(ext_modules=extensions())
