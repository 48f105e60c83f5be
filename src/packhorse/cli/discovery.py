# SPDX-License-Identifier: MIT
"""Find the app and the store that a command works on.

The app is named by the argument, PACKHORSE_APP or pyproject.toml, or it is the only one found:

    shop.jobs:app           an attribute, which may be dotted
    shop.jobs:create_app    a function without arguments that returns the app
    shop.jobs               a module with one app in it

The working directory is importable, and so is the folder of the pyproject.toml that names the app,
with its `src`. The store is that of --url, --app, PACKHORSE_URL or PACKHORSE_URL_FILE, or of the
app that is found, in this order; only --app and the last import user code.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol, runtime_checkable

import click

from packhorse.app import Packhorse
from packhorse.cli.exits import AppNotLoaded, StoreMissing
from packhorse.cli.loading import import_module, load_app, lone_apps
from packhorse.cli.output import did_you_mean, note
from packhorse.client.sealed_store import plain_store
from packhorse.errors import ConfigError
from packhorse.stores.protocol import Store
from packhorse.stores.urls import chosen_url

APP_VARIABLE: Final = "PACKHORSE_APP"

_SETTINGS: Final = ("app",)
_NAMES: Final = ("app", "main", "tasks", "jobs")
#: Packages below `src` that are looked into.
_PACKAGES_MAX: Final = 100
#: A larger file was not written by hand.
_FILE_BYTES_MAX: Final = 1_000_000
#: What makes an app. A file without it is not imported: importing runs whatever is in it.
_MAKES_AN_APP: Final = re.compile(r"\bPackhorse\s*\(")
_URL_VARIABLES: Final = ("PACKHORSE_URL", "PACKHORSE_URL_FILE")


@dataclass(frozen=True, slots=True)
class FoundApp:
    """An app, its name, and where the name comes from."""

    app: Packhorse
    name: str  #: `shop.jobs:app`
    source: str  #: `from pyproject.toml`

    def __str__(self) -> str:
        return f"{self.name} ({self.source})"


def find_app(
    given: str | None,
    include: Iterable[str] = (),
    *,
    folder: Path,
    environment: Mapping[str, str],
) -> FoundApp:
    """Import the app with the modules of its tasks and those of `include`.

    `AppNotLoaded` says what was tried.
    """
    found = _found(given, folder, environment)
    found.app.include(*include)
    for module in found.app.modules:
        import_module(module, f"included by {found.name}", folder)
    found.app.registry.load()
    return found


def _found(given: str | None, folder: Path, environment: Mapping[str, str]) -> FoundApp:
    _importable(folder)
    if given is not None:
        return _loaded(given, "from the command line", folder)
    if (name := environment.get(APP_VARIABLE)) is not None:
        return _loaded(name, f"from {APP_VARIABLE}", folder)
    project = _nearest_project(folder)
    if project is not None and (name := _app_setting(project)):
        for place in (project.parent / "src", project.parent):
            _importable(place)
        source = project.name if project.parent == folder else str(project)
        return _loaded(name, f"from {source}", project.parent)
    return _scanned(folder, project)


def _loaded(name: str, source: str, folder: Path) -> FoundApp:
    if not name.strip():
        raise AppNotLoaded(f"the app's name {source} is empty; write module:attribute")
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
            hint = did_you_mean(name, _SETTINGS, f"there is only {_SETTINGS[0]!r}")
            raise AppNotLoaded(f"{project}: [tool.packhorse] has no setting {name!r}; {hint}")
    app = own.get("app")
    if app is not None and (not isinstance(app, str) or not app):
        raise AppNotLoaded(f"{project}: [tool.packhorse] app is {app!r}; write 'module:attribute'")
    return app


def _scanned(folder: Path, project: Path | None) -> FoundApp:
    files = list(_app_files(folder))
    found: dict[int, FoundApp] = {}
    for file in files:
        if file.promising:
            _importable(file.root)
            for app, name in lone_apps(file.module, folder):
                found.setdefault(id(app), FoundApp(app, name, f"found in {file.shown}"))
    if len(found) == 1:
        return next(iter(found.values()))
    if found:
        names = ", ".join(one.name for one in found.values())
        raise AppNotLoaded(
            f"several apps were found: {names}; say which one: give it as APP or --app, set "
            f'{APP_VARIABLE}, or write app = "..." under [tool.packhorse] in pyproject.toml'
        )
    raise AppNotLoaded("\n  ".join(_what_was_tried(files, project)))


def _what_was_tried(files: list[_AppFile], project: Path | None) -> Iterator[str]:
    yield (
        "no app was found; name it as module:attribute, such as 'packhorse worker jobs:app' or "
        "'--app jobs:app'. Tried:"
    )
    yield "the command line: no app named there"
    yield f"{APP_VARIABLE}: not set"
    shown = "no pyproject.toml here or above" if project is None else str(project)
    yield f"[tool.packhorse] app: {shown if project is None else f'not in {shown}'}"
    for file in files:
        yield f"{file.shown}: {file.verdict}"


@dataclass(frozen=True, slots=True)
class _AppFile:
    """A file that may define the app. It is read before it is imported."""

    module: str
    root: Path  #: the folder its module name starts from
    shown: str  #: its path as people see it
    verdict: str
    promising: bool


def _app_files(folder: Path) -> Iterator[_AppFile]:
    """Read app.py, main.py, tasks.py and jobs.py, here and in every package below `src`."""
    for name in _NAMES:
        yield _app_file(folder, Path(f"{name}.py"), folder)
    source = folder / "src"
    packages = sorted(path for path in source.glob("*/") if path.name.isidentifier())
    for package in packages[:_PACKAGES_MAX]:
        paths = (Path(package.name, f"{name}.py") for name in _NAMES)
        yield from (_app_file(source, path, folder) for path in paths if (source / path).is_file())


def _app_file(root: Path, path: Path, folder: Path) -> _AppFile:
    verdict, promising = _looked_into(root / path)
    return _AppFile(
        module=".".join(path.with_suffix("").parts),
        root=root,
        shown=(root / path).relative_to(folder).as_posix(),
        verdict=verdict,
        promising=promising,
    )


def _looked_into(path: Path) -> tuple[str, bool]:
    try:
        if path.stat().st_size > _FILE_BYTES_MAX:
            return "too large to look into", False
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return "not there", False
    except (OSError, ValueError) as error:
        return f"cannot be read: {error}", False
    if _MAKES_AN_APP.search(text):
        return "makes an app, but not as a variable of the module", True
    return "makes no Packhorse(...)", False


@runtime_checkable
class _Findable(Protocol):
    """A store that can tell whether it exists without creating it."""

    def is_there(self) -> bool: ...


@contextmanager
def opened(url: str | None, app_name: str | None) -> Iterator[Packhorse]:
    """Open the app to work with; close it at the end."""
    if url is not None and app_name is not None:
        raise click.UsageError("--url and --app both say which store; give one of them")
    with closing(_chosen(url, app_name)) as app:
        yield app


def _chosen(url: str | None, app_name: str | None) -> Packhorse:
    if url is not None:
        return Packhorse(url)
    if app_name is None and any(name in os.environ for name in _URL_VARIABLES):
        return Packhorse()  # reads them itself
    try:
        return found_app(app_name).app
    except AppNotLoaded as error:
        if app_name is not None:
            raise
        raise AppNotLoaded(f"{error}\nOr name the store alone, with --url.") from error


def found_app(
    app_name: str | None,
    include: Iterable[str] = (),
    *,
    url: str | None = None,
    quiet: bool = False,
) -> FoundApp:
    """Find the app, give it the store of `url` if any, and note on stderr which one it is."""
    found = find_app(app_name, include, folder=Path.cwd(), environment=os.environ)
    if url is not None:
        found.app.use_store(url)
    if not quiet:
        note(f"Using {found}")
        if url is None:
            _tell_of_another_store(found)
    return found


def _tell_of_another_store(found: FoundApp) -> None:
    named = [name for name in _URL_VARIABLES if name in os.environ]
    with suppress(ConfigError):  # of a variable that the app does not need
        if named and found.app.url not in (None, chosen_url(None, found.app.folder)):
            note(
                f"{named[0]} names another store than {found.name} uses; commands without --app "
                "look there"
            )


def existing_store(store: Store) -> None:
    """Refuse a store that does not exist yet: looking must not create a file."""
    if store.label.startswith("memory:"):
        raise ConfigError(
            "memory:// lives inside the process that uses it, so there is nothing to see from "
            "here; use sqlite:///jobs.db"
        )
    if not _is_there(store):
        raise StoreMissing(
            f"there is no store at {store.label} yet; check the path or the schema, or create it: "
            "start a worker, submit a job, or run 'packhorse migrate'"
        )
    copied = store.run(store.transfer.copied())
    if copied is not None:
        note(f"The jobs of {store.label} were copied to {copied.to}; workers and submits refuse it")


def _is_there(store: Store) -> bool:
    store = plain_store(store)
    return not isinstance(store, _Findable) or store.is_there()
