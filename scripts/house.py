# SPDX-License-Identifier: MIT
"""Print how large the house is, capability by capability, and how far a reader walks through it.

Sizes are counted from the files; `house.toml` says which belong to which capability, and what none
claims is the spine. A walk is measured by running it on SQLite and recording every
function of the package that takes part: submitting one job, taking a job from claim to settled, and
holding a job back for its rate limit until it may run. What a loop beside the job happens to do in
between is left out: only what the shortest repetitions of a walk have in common counts. Nor is
waiting for the result part of the way from claim to settled: a thread apart looks at the jobs.

    python -m scripts.house                    sizes and walks
    python -m scripts.house claim_to_settled   the functions of one walk, in the order they ran
"""

from __future__ import annotations

import ast
import re
import sys
import tempfile
import threading
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final
from unittest.mock import patch

from packhorse import Packhorse
from packhorse.core.job import TERMINAL
from packhorse.stores.sqlite import runner, wakeups

ROOT: Final = Path(__file__).resolve().parent.parent
PACKAGE: Final = ROOT / "src" / "packhorse"
CAPABILITIES: Final = ROOT / "scripts" / "house.toml"
#: Words that no comparable project uses, in place of the thing that acts.
ODD_WORDS: Final = re.compile(r"\b(whoever|whom|somebody|nobody|anybody|anew)\b", re.IGNORECASE)
#: Public names that an error and an event share, or the client and the worker protocol.
PUBLIC_TWICE: Final = frozenset({"JobCancelled", "JobDead", "Task"})
SMALL_MODULE_LINES: Final = 40
#: Many, since beside other work few repetitions are free of what loops beside the job do.
_REPETITIONS: Final = 40
_SHORTEST: Final = 5
#: Between two looks at whether jobs have ended, and after that, for what follows a settlement.
_LOOK_S: Final = 0.02
_AFTER_S: Final = 0.05
_PATIENCE_S: Final = 30.0

#: One function of the package that was run: file, name, first line and number of lines.
Step = tuple[str, str, int, int]
#: What each repetition of a walk ran through.
WalkFunction = Callable[[Packhorse, "Recorder"], list[list[Step]]]


@dataclass(frozen=True, slots=True)
class Measure:
    """One figure, and what it should be at most."""

    name: str
    value: int
    most: int

    @property
    def is_met(self) -> bool:
        return self.value <= self.most


@dataclass(frozen=True, slots=True)
class Share:
    """The files that one capability has for itself, and the decision that explains it."""

    name: str
    decision: str
    files: tuple[Path, ...]
    lines: int


@dataclass(frozen=True, slots=True)
class Walk:
    """How far a reader goes: the functions that took part, their files, their lines."""

    name: str
    steps: tuple[Step, ...]

    @property
    def functions(self) -> int:
        return len(self.steps)

    @property
    def files(self) -> int:
        return len({file for file, _, _, _ in self.steps})

    @property
    def lines(self) -> int:
        return sum(lines for _, _, _, lines in self.steps)


def main(chosen: Sequence[str]) -> int:
    """Print all of it, or the walks chosen; 1 if a size is above its bound."""
    if chosen:
        for walk in walks(chosen):
            print(f"{walk.name}: {walk.functions} / {walk.files} / {walk.lines:,}")
            for file, name, first, lines in walk.steps:
                print(f"{lines:4}  {Path(file).relative_to(PACKAGE)}:{first} {name}")
        return 0
    sizes = measures(PACKAGE)
    print("| Measure | Now | At most |\n| --- | ---: | ---: |")
    for measure in sizes:
        print(f"| {measure.name} | {measure.value:,} | {measure.most:,} |")
    print("\n| Capability | ADR | Files | Lines |\n| --- | --- | ---: | ---: |")
    for share in shares(PACKAGE):
        print(f"| {share.name} | {share.decision} | {len(share.files)} | {share.lines:,} |")
    print("\n| Walk on SQLite | Functions | Files | Lines |\n| --- | ---: | ---: | ---: |")
    for walk in walks():
        print(f"| {walk.name} | {walk.functions} | {walk.files} | {walk.lines} |")
    return 0 if all(measure.is_met for measure in sizes) else 1


def measures(package: Path) -> list[Measure]:
    """The sizes of the spine and of all; how it reads is judged of both."""
    texts = _texts(package)
    modules = {path: text for path, text in texts.items() if path.suffix == ".py"}
    spine = shares(package)[0]
    return [
        Measure("files", len(texts), 473),
        Measure("files of the spine", len(spine.files), 330),
        Measure("lines of the spine", spine.lines, 35_000),
        Measure("query files", sum(path.parent.name == "queries" for path in texts), 30),
        Measure("lines with odd words", sum(len(_odd_lines(text)) for text in texts.values()), 0),
        Measure("class names used twice", len(repeated_class_names(modules)), 0),
        Measure(f"modules under {SMALL_MODULE_LINES} lines", _small(modules), len(modules)),
    ]


def shares(package: Path) -> list[Share]:
    """The spine, then every capability with the files that are its own."""
    texts = _texts(package)
    found = []
    for each in tomllib.loads(CAPABILITIES.read_text(encoding="utf-8"))["capability"]:
        named = {path for one in each["files"] for path in package.glob(one)}
        own = tuple(path for path in texts if path in named)
        lines = sum(len(texts[path]) for path in own)
        found.append(Share(each["name"], f"{each['adr']:04}", own, lines))
    claimed = {path for share in found for path in share.files}
    rest = tuple(path for path in texts if path not in claimed)
    return [Share("the spine", "", rest, sum(len(texts[path]) for path in rest)), *found]


def _texts(package: Path) -> dict[Path, list[str]]:
    """The lines of every file of the package that is code, without its suite of tests."""
    return {
        path: path.read_text(encoding="utf-8").splitlines()
        for path in sorted(package.rglob("*"))
        if path.suffix in {".py", ".sql", ".lua"} and "testing" not in path.parts
    }


def repeated_class_names(modules: dict[Path, list[str]]) -> list[str]:
    """The names that more than one class of the core has."""
    names = Counter(
        node.name
        for text in modules.values()
        for node in ast.walk(ast.parse("\n".join(text)))
        if isinstance(node, ast.ClassDef)
    )
    return sorted(name for name, count in names.items() if count > 1 and name not in PUBLIC_TWICE)


def _odd_lines(text: Sequence[str]) -> list[str]:
    return [line for line in text if ODD_WORDS.search(line)]


def _small(modules: dict[Path, list[str]]) -> int:
    small = (
        len(text) < SMALL_MODULE_LINES for path, text in modules.items() if path.stem[0] != "_"
    )
    return sum(small)


class Recorder:
    """Notes the functions of the package that run while it is switched on, in chosen threads."""

    def __init__(self) -> None:
        self._steps: dict[Step, None] | None = None  # in the order they ran first
        self._thread: int | None = None
        self._elsewhere = False

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Trace this thread and every one that is started inside the block."""
        threading.settrace(self._trace)
        sys.settrace(self._trace)
        try:
            yield
        finally:
            sys.settrace(None)
            threading.settrace(None)

    def start(self, *, elsewhere: bool) -> None:
        """Record this thread, or all but this one."""
        self._thread, self._elsewhere = threading.get_ident(), elsewhere
        self._steps = {}

    def stop(self) -> list[Step]:
        """What was run since `start`."""
        steps, self._steps = self._steps, None
        return list(steps or ())

    def _trace(self, frame: FrameType, *_: Any) -> None:
        """Note a call; lines are not traced, so that the walk stays as quick as it is."""
        steps, code = self._steps, frame.f_code
        if steps is None or (threading.get_ident() != self._thread) is not self._elsewhere:
            return
        if not code.co_filename.startswith(str(PACKAGE)) or code.co_name.startswith("<"):
            return  # a comprehension is read with the function around it
        steps[_step(code)] = None


@cache
def _step(code: CodeType) -> Step:
    first = code.co_firstlineno
    last = max(line for _, _, line in code.co_lines() if line is not None)
    return code.co_filename, code.co_qualname, first, last - first + 1


def walks(chosen: Sequence[str] = ()) -> list[Walk]:
    """The three walks, or those chosen, each on a store of its own."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        return [
            _measured(name, walk, Path(folder) / f"{walk.__name__}.db")
            for name, walk in _WALKS.items()
            if not chosen or walk.__name__.removeprefix("_") in chosen
        ]


def _measured(name: str, walk: WalkFunction, db: Path) -> Walk:
    recorder = Recorder()
    app = Packhorse(f"sqlite:///{db}")
    # Polling finds wake-ups that were lost, and a look at the file that it was replaced; here
    # neither happens, and they would run beside every job that takes long enough.
    seldom = patch.object(wakeups, "POLL_S", _PATIENCE_S)
    with seldom, patch.object(runner, "_LOOK_AGAIN_S", _PATIENCE_S), recorder.installed():
        first, *others = sorted(walk(app, recorder), key=len)[:_SHORTEST]
    app.close()
    return Walk(name, tuple(step for step in first if all(step in one for one in others)))


def _submit_one(app: Packhorse, recorder: Recorder) -> list[list[Step]]:
    @app.task
    async def nothing() -> None: ...

    nothing.enqueue()  # what is done once for an app is not part of the walk
    seen = []
    for _ in range(_REPETITIONS):
        recorder.start(elsewhere=False)
        nothing.enqueue()
        seen.append(recorder.stop())
    return seen


def _claim_to_settled(app: Packhorse, recorder: Recorder) -> list[list[Step]]:
    @app.task
    async def nothing() -> None: ...

    return _worked(app, recorder, lambda: [nothing.enqueue()])


def _rate_limited(app: Packhorse, recorder: Recorder) -> list[list[Step]]:
    app.queue("slow", rate_limit=(1, "100ms"))

    @app.task(queue="slow")
    async def nothing() -> None: ...

    return _worked(app, recorder, lambda: [nothing.enqueue(), nothing.enqueue()])


def _worked(
    app: Packhorse, recorder: Recorder, submit: Callable[[], list[Any]]
) -> list[list[Step]]:
    """What a worker in another thread does with jobs that this thread submits."""
    threading.Thread(target=app.run, daemon=True).start()
    _finish(submit())
    seen = []
    for _ in range(_REPETITIONS):
        recorder.start(elsewhere=True)
        _finish(submit())
        seen.append(recorder.stop())
    return seen


def _finish(jobs: list[Any]) -> None:
    pause = threading.Event()
    for _ in range(round(_PATIENCE_S / _LOOK_S)):
        if all(job.status() in TERMINAL for job in jobs):
            pause.wait(_AFTER_S)
            return
        pause.wait(_LOOK_S)
    raise TimeoutError("the worker does not finish its jobs")


_WALKS: Final = {
    "submit one": _submit_one,
    "claim to settled": _claim_to_settled,
    "rate-limited, held back, let go": _rate_limited,
}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
