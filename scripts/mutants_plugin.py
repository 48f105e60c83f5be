# SPDX-License-Identifier: MIT
"""A plugin of pytest for `make mutants`: which test runs which lines, and a server of tests.

With `MUTANTS_MAP`, a folder, every line that is run is noted with the test that ran it, and how
long each test took.

With `MUTANTS_FDS`, two file descriptors, the tests are collected once; then each line that comes
in names a changed module and tests. A fork of the process gives the functions of the module their
changed code, runs the tests until one fails, and answers. So no mutant pays for imports.

With `MUTANTS_LIMITS`, a file of tests and seconds, a test that takes longer than its limit fails.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import json
import os
import resource
import select
import signal
from collections.abc import Generator, Iterator
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, Final, TypeAlias

import coverage
import pytest

_MEMORY_MAX: Final = 8 << 30  #: changed code may never stop collecting
_reports: list[pytest.TestReport] = []
Functions: TypeAlias = dict[str, list[FunctionType]]  #: by file


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Tell coverage which test runs."""
    measured = coverage.Coverage.current() if "MUTANTS_MAP" in os.environ else None
    if measured is None:
        return (yield)
    measured.switch_context(item.nodeid)
    try:
        return (yield)
    finally:
        measured.switch_context("")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note how long a test took that passed, and which failed."""
    if report.failed:
        _reports.append(report)
    # One that fails without any change could judge none.
    if "MUTANTS_MAP" in os.environ and report.when == "call" and report.passed:
        file = Path(os.environ["MUTANTS_MAP"]) / f"durations-{os.getpid()}"
        with file.open("a", encoding="utf-8") as lines:
            lines.write(f"{report.duration:.3f} {report.nodeid}\n")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Generator[None]:
    """Set the limits, after every other plugin has had its say."""
    yield
    if "MUTANTS_LIMITS" in os.environ:
        limits = json.loads(Path(os.environ["MUTANTS_LIMITS"]).read_text("utf-8"))
        places = {name: number for number, name in enumerate(limits)}
        items.sort(key=lambda item: places.get(item.nodeid, len(places)))
        for item in items:
            if item.nodeid in limits:
                item.add_marker(pytest.mark.timeout(limits[item.nodeid]), append=False)


# -------------------------------------------------------------------------------------- server


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Instead of running the tests, run some of them in a fork whenever asked."""
    if "MUTANTS_FDS" not in os.environ:
        return None
    asked, answers = map(int, os.environ.pop("MUTANTS_FDS").split(","))
    for descriptor in (asked, answers):
        os.set_inheritable(descriptor, False)
    items = {item.nodeid: item for item in session.items}
    found = functions()
    with os.fdopen(asked, encoding="utf-8") as lines, os.fdopen(answers, "w") as out:
        print(json.dumps(sorted(items)), file=out, flush=True)
        for line in lines:
            request = json.loads(line)
            print(json.dumps(_judged(session, items, request, found)), file=out, flush=True)
    return True


def _judged(
    session: pytest.Session,
    items: dict[str, pytest.Item],
    request: dict[str, Any],
    found: Functions,
) -> dict[str, Any]:
    """What came of the tests of a request; of those that did not end in time, `late`."""
    come, go = os.pipe()
    child = os.fork()
    if child == 0:
        os.setsid()
        try:
            answer = _run(session, [items[name] for name in request["tests"]], request, found)
        except BaseException as error:  # noqa: BLE001 - the fork must not go on
            answer = {"error": repr(error)}
        os.write(go, json.dumps(answer).encode())
        atexit._run_exitfuncs()  # noqa: SLF001 - servers that tests have started
        os._exit(0)
    os.close(go)
    ready, _, _ = select.select([come], [], [], request["patience_s"])
    text = os.read(come, 1 << 20) if ready else b""
    os.close(come)
    if text:
        _wait_for(child)
    else:
        os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
    return json.loads(text) if text else {"late": not ready, "failed": None}


def _wait_for(child: int) -> None:
    """Let a fork end what its tests have started, for a while."""
    for _ in range(100):
        if os.waitpid(child, os.WNOHANG)[0]:
            return
        select.select([], [], [], 0.05)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)


def _run(
    session: pytest.Session, items: list[pytest.Item], request: dict[str, Any], found: Functions
) -> dict[str, Any]:
    from _pytest.main import pytest_runtestloop as run_loop  # noqa: PLC0415 - only forks need it

    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_MAX, _MEMORY_MAX))
    changed = change(request["module"], request["before"], request["after"], found)
    for item, limit_s in zip(items, request["limits"], strict=True):
        item.add_marker(pytest.mark.timeout(limit_s), append=False)
    session.items = items
    session.config.option.maxfail = 1
    with contextlib.suppress(session.Failed):
        run_loop(session)
    if not _reports:
        return {"failed": None, "changed": changed}
    return {"failed": _reports[0].nodeid, "hung": "Timeout (>" in str(_reports[0].longrepr)}


def change(file: str, before: str, after: str, found: Functions) -> int:
    """Give the functions of a module the code of another text; how many have changed."""
    old, new = (list(_codes(compile(text, file, "exec"))) for text in (before, after))
    if [code.co_qualname for code in old] != [code.co_qualname for code in new]:
        raise ValueError("the change adds or removes functions")
    codes = {was: now for was, now in zip(old, new, strict=True) if was != now}
    changed = 0
    for function in found.get(file, ()):
        if function.__code__ in codes:
            function.__code__ = codes[function.__code__]
            changed += 1
    return changed


def functions() -> Functions:
    """Every function there is, by its file: looked up once, since that touches all of memory."""
    gc.unfreeze()
    found: Functions = {}
    for each in gc.get_objects():
        if type(each) is FunctionType:
            found.setdefault(each.__code__.co_filename, []).append(each)
    gc.collect()
    gc.freeze()  # or a fork would copy what its collector looks at
    return found


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)
