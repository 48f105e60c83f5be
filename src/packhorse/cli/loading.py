# SPDX-License-Identifier: MIT
"""Import the named module, take the app out of it, and explain what fails."""

from __future__ import annotations

import difflib
import importlib
import re
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import FunctionType, MethodType, ModuleType
from typing import Any, Final

import packhorse
from packhorse.app import Packhorse
from packhorse.cli.exits import AppNotLoaded, ToldToStop

_DOTTED: Final = r"[^\W\d]\w*(?:\.[^\W\d]\w*)*"
_NAME: Final = re.compile(rf"({_DOTTED})(?::({_DOTTED}))?")
#: Files whose names are compared with a module that is not there.
_NEIGHBOURS_MAX: Final = 500
#: Frames that say nothing about the user's code.
_OWN_FOLDER: Final = str(Path(packhorse.__file__).parent)
_MACHINERY: Final = ("<frozen ", str(Path(importlib.__file__).parent))


def load_app(name: str, source: str, folder: Path) -> tuple[Packhorse, str]:
    """Load the app that `module:attribute` or `module` names; return it and its full name."""
    if "://" in name:  # not shown: it may have a password in it
        raise AppNotLoaded(
            f"the app ({source}) is named by a URL; write module:attribute, and name a store alone "
            "with --url"
        )
    match = _NAME.fullmatch(name)
    if match is None:
        raise AppNotLoaded(f"{name!r} ({source}) is no name of an app; {_as_a_name(name)}")
    module_name, attribute = match[1], match[2]
    module = import_module(module_name, source, folder)
    if attribute is not None:
        return _attribute(module, attribute, source), f"{module_name}:{attribute}"
    apps = list(_apps_of(module))
    if len(apps) == 1:
        return apps[0]
    if apps:
        names = ", ".join(full_name for _, full_name in apps)
        raise AppNotLoaded(
            f"module {module_name} ({source}) has several apps; say which one: {names}"
        )
    raise AppNotLoaded(
        f"module {module_name} ({source}) has no Packhorse app among its variables; "
        f"name the one that has it, or a function that makes it: {module_name}:create_app"
    )


def lone_apps(module_name: str, folder: Path) -> Iterator[tuple[Packhorse, str]]:
    """Yield the apps among a module's variables, each once, with their full names."""
    return _apps_of(import_module(module_name, "found by its file name", folder))


def _apps_of(module: ModuleType) -> Iterator[tuple[Packhorse, str]]:
    seen: set[int] = set()
    for name, value in vars(module).items():
        if isinstance(value, Packhorse) and id(value) not in seen:
            seen.add(id(value))
            yield value, f"{module.__name__}:{name}"


def _as_a_name(text: str) -> str:
    """Suggest a name for a path."""
    path, _, attribute = text.partition(":")
    dotted = ".".join(Path(path.removesuffix(".py")).parts).lstrip(".")
    suggestion = f"{dotted}:{attribute}" if attribute else dotted
    if suggestion != text and _NAME.fullmatch(suggestion):
        return f"did you mean {suggestion!r}?"
    return "write module:attribute, such as 'shop.jobs:app'"


def import_module(name: str, source: str, folder: Path) -> ModuleType:
    """Import a module; errors in it are shown without the frames of this package."""
    module: ModuleType = _explained(
        lambda: importlib.import_module(name),
        f"module {name} ({source}) could not be imported",
        missing=(name, f"there is no module {name!r} ({source}){_near_module(name, folder)}"),
    )
    return module


def _attribute(module: ModuleType, dotted: str, source: str) -> Packhorse:
    value: Any = module
    for part in dotted.split("."):
        if not hasattr(value, part):
            raise AppNotLoaded(
                f"module {module.__name__} ({source}) has no {dotted!r}"
                f"{_near_attribute(module, part)}"
            )
        value = getattr(value, part)
    full_name = f"{module.__name__}:{dotted}"
    # These may make the app. A task, and the app of a web framework, can be called too.
    if isinstance(value, FunctionType | MethodType | partial | type):
        value = _explained(value, f"{full_name} ({source}) failed when it was called")
    if not isinstance(value, Packhorse):
        raise AppNotLoaded(
            f"{full_name} ({source}) is of type {_kind(value)}, not a Packhorse app nor a "
            f"function that returns one{_near_attribute(module, '')}"
        )
    return value


def _kind(value: object) -> str:
    """Name a value's type and package."""
    kind = type(value)
    package = kind.__module__.partition(".")[0]
    return kind.__name__ if package == "builtins" else f"{kind.__name__} ({package})"


def _explained(
    action: Callable[[], Any], what_failed: str, *, missing: tuple[str, str] | None = None
) -> Any:
    """Run user code; show its errors without the frames of this package."""
    try:
        return action()
    except ToldToStop:
        raise
    except ModuleNotFoundError as error:
        if missing is not None and error.name and f"{missing[0]}.".startswith(f"{error.name}."):
            raise AppNotLoaded(missing[1]) from None
        raise AppNotLoaded(f"{what_failed}:\n{_user_traceback(error)}") from error
    except (Exception, SystemExit) as error:
        raise AppNotLoaded(f"{what_failed}:\n{_user_traceback(error)}") from error


def _user_traceback(error: BaseException) -> str:
    summary = traceback.TracebackException.from_exception(error)
    link: traceback.TracebackException | None = summary
    while link is not None:
        link.stack = traceback.StackSummary.from_list([f for f in link.stack if _is_users(f)])
        link = link.__cause__ or link.__context__
    return "".join(summary.format()).rstrip()


def _is_users(frame: traceback.FrameSummary) -> bool:
    return not frame.filename.startswith((*_MACHINERY, _OWN_FOLDER))


def _near_module(name: str, folder: Path) -> str:
    near = difflib.get_close_matches(name, sorted(_neighbours(folder)), n=1)
    return f"; did you mean {near[0]!r}?" if near else f"; looked in {folder} and on the path"


def _neighbours(folder: Path) -> Iterator[str]:
    """Yield the dotted names of nearby modules."""
    left = _NEIGHBOURS_MAX
    for root in (folder, folder / "src"):
        for pattern in ("*.py", "*/*.py"):
            for path in sorted(root.glob(pattern))[:left]:
                left -= 1
                yield ".".join(path.relative_to(root).with_suffix("").parts)


def _near_attribute(module: ModuleType, wanted: str) -> str:
    apps = [full_name.partition(":")[2] for _, full_name in _apps_of(module)]
    near = difflib.get_close_matches(wanted, [*apps, *vars(module)], n=1) or apps[:1]
    return f"; did you mean {module.__name__}:{near[0]}?" if near else ""
