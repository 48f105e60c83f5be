# SPDX-License-Identifier: MIT
"""Which app is meant: the argument, PACKHORSE_APP, pyproject.toml, or the one that can be found.

    shop.jobs:app           an attribute, which may be dotted
    shop.jobs:create_app    a function without arguments that returns the app
    shop.jobs               a module with one app in it

The first of the four that says something decides. The working directory is importable, and so is
the folder of the pyproject.toml that decided, with its `src`.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from packhorse.app import Packhorse
from packhorse.cli.exits import AppNotLoaded
from packhorse.cli.loading import load_app, lone_apps
from packhorse.cli.scanning import Candidate, candidates

__all__ = ["APP_VARIABLE", "FoundApp", "find_app"]

APP_VARIABLE: Final = "PACKHORSE_APP"

_SETTINGS: Final = ("app",)


@dataclass(frozen=True, slots=True)
class FoundApp:
    """An app, what it is called, and where that was said."""

    app: Packhorse
    name: str  #: `shop.jobs:app`
    source: str  #: `from pyproject.toml`

    def __str__(self) -> str:
        return f"{self.name} ({self.source})"


def find_app(given: str | None, *, folder: Path, environment: Mapping[str, str]) -> FoundApp:
    """The app that is meant, imported; `AppNotLoaded` says what was tried."""
    _importable(folder)
    if given:
        return _loaded(given, "from the command line", folder)
    if name := environment.get(APP_VARIABLE):
        return _loaded(name, f"from {APP_VARIABLE}", folder)
    project = _nearest_project(folder)
    if project is not None and (name := _app_setting(project)):
        for place in (project.parent / "src", project.parent):
            _importable(place)
        source = project.name if project.parent == folder else str(project)
        return _loaded(name, f"from {source}", project.parent)
    return _scanned(folder, project)


def _loaded(name: str, source: str, folder: Path) -> FoundApp:
    app, full_name = load_app(name, source, folder)
    return FoundApp(app, full_name, source)


def _importable(place: Path) -> None:
    if place.is_dir() and str(place) not in sys.path:
        sys.path.insert(0, str(place))


def _nearest_project(folder: Path) -> Path | None:
    paths = (place / "pyproject.toml" for place in (folder, *folder.parents))
    return next((path for path in paths if path.is_file()), None)


def _app_setting(project: Path) -> str | None:
    import tomllib

    try:
        settings = tomllib.loads(project.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise AppNotLoaded(f"{project} cannot be read: {error}") from error
    own: Any = settings.get("tool", {}).get("packhorse", {})
    for name in own:
        if name not in _SETTINGS:
            near = difflib.get_close_matches(name, _SETTINGS, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there is only {_SETTINGS[0]!r}"
            raise AppNotLoaded(f"{project}: [tool.packhorse] has no setting {name!r}; {hint}")
    app = own.get("app")
    if app is not None and (not isinstance(app, str) or not app):
        raise AppNotLoaded(f"{project}: [tool.packhorse] app is {app!r}; write 'module:attribute'")
    return app


def _scanned(folder: Path, project: Path | None) -> FoundApp:
    looked_at = list(candidates(folder))
    found: dict[int, FoundApp] = {}
    for candidate in looked_at:
        if candidate.promising:
            _importable(candidate.root)
            for app, name in lone_apps(candidate.module, folder):
                found.setdefault(id(app), FoundApp(app, name, f"found in {candidate.shown}"))
    if len(found) == 1:
        return next(iter(found.values()))
    if found:
        names = ", ".join(one.name for one in found.values())
        raise AppNotLoaded(
            f"several apps were found: {names}; say which one: give it as APP or --app, set "
            f'{APP_VARIABLE}, or write app = "..." under [tool.packhorse] in pyproject.toml'
        )
    raise AppNotLoaded("\n  ".join(_what_was_tried(looked_at, project)))


def _what_was_tried(looked_at: list[Candidate], project: Path | None) -> Iterator[str]:
    yield (
        "no app was found; name it as module:attribute, such as 'packhorse worker jobs:app' or "
        "'--app jobs:app'. Tried:"
    )
    yield "the command line: no app named there"
    yield f"{APP_VARIABLE}: not set"
    shown = "no pyproject.toml here or above" if project is None else str(project)
    yield f"[tool.packhorse] app: {shown if project is None else f'not in {shown}'}"
    for candidate in looked_at:
        yield f"{candidate.shown}: {candidate.verdict}"
