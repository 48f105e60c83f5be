# SPDX-License-Identifier: MIT
"""Compiles once what each process of a run of tests would otherwise compile for itself.

That is so in a new checkout, and always where Python is told to write no bytecode. A file that
changes later is noticed by its content.
"""

from __future__ import annotations

import ast
import os
import warnings
from collections.abc import Iterable
from compileall import compile_file
from concurrent.futures import ProcessPoolExecutor
from importlib.util import source_hash
from pathlib import Path
from py_compile import PycInvalidationMode
from types import ModuleType

from _pytest.assertion.rewrite import PYC_TAIL, _read_pyc, _write_pyc_fp, rewrite_asserts
from hypothesis.errors import HypothesisSideeffectWarning
from hypothesis.internal.constants_ast import constants_from_module


def compile_all(folders: Iterable[Path], cores: int) -> None:
    """Compile the modules below the folders, as Python and as pytest would load them."""
    paths = [path for folder in folders for path in folder.rglob("*.py")]
    with ProcessPoolExecutor(cores) as pool:
        for _ in pool.map(_compile, paths, chunksize=8):
            pass


def _compile(path: Path) -> None:
    rewritten = path.parent / "__pycache__" / f"{path.stem}{PYC_TAIL}"
    if _read_pyc(path, rewritten) is None:
        compile_file(path, quiet=2, invalidation_mode=PycInvalidationMode.CHECKED_HASH)
        _rewrite(path, rewritten)
        if "tests" not in path.parts:
            _look_for_constants(path)


def _rewrite(path: Path, compiled: Path) -> None:
    """Compile with assertions that say what they compared, in the way of pytest's import hook."""
    source = path.read_bytes()
    tree = ast.parse(source, filename=str(path))
    rewrite_asserts(tree, source, str(path))
    code = compile(tree, str(path), "exec", dont_inherit=True)
    unfinished = compiled.with_name(f"{compiled.name}.{os.getpid()}")
    with unfinished.open("wb") as file:
        _write_pyc_fp(file, source_hash(source), code)
    unfinished.replace(compiled)


def _look_for_constants(path: Path) -> None:
    """Let Hypothesis keep the constants it finds in a module, which it likes to draw."""
    module = ModuleType(path.stem)
    module.__file__ = str(path)
    with warnings.catch_warnings():  # that it is early to do so: it is what this is for
        warnings.simplefilter("ignore", HypothesisSideeffectWarning)
        constants_from_module(module)
