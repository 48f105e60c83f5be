# SPDX-License-Identifier: MIT
"""The budgets of STYLE.md and the reasoned exceptions to them.

An exception is `"module:Qualified.name": "the reason"`; one that nothing needs fails the tidy test.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
SOURCE: Final = ROOT / "src"
TESTS: Final = ROOT / "tests"
CONTRACTS: Final = SOURCE / "packhorse" / "stores" / "protocol.py"
SURFACE: Final = SOURCE / "packhorse" / "__init__.py"


@dataclass(frozen=True, slots=True)
class Budget:
    """The most there may be of each thing."""

    file_lines: int  # a file is read in one sitting
    function_lines: int  # a body, without its docstring, fits the screen
    parameters: int = 10  # without self and cls
    nesting: int = 3  # blocks inside blocks


SOURCE_BUDGET: Final = Budget(file_lines=400, function_lines=50)
# A test tells a story from given to then, so it may be a little longer.
TEST_BUDGET: Final = Budget(file_lines=500, function_lines=60)

CONTRACT_VERBS: Final = 12
SQL_LINES: Final = 60  # of one operation
LUA_LINES: Final = 300  # of one topic of the scripts for Redis
LUA_FUNCTION_LINES: Final = 60  # of one function in them
MIGRATION_LINES: Final = 200  # of one step of the schema, its comments included
# Thirty would do for the verbs; the rest are errors, each of which is importable from `packhorse`.
PUBLIC_NAMES: Final = 70

#: Functions with more parameters than the budget allows.
MANY_PARAMETERS: Final[Mapping[str, str]] = MappingProxyType(
    {"packhorse.app:Packhorse.__init__": "each says one thing of an app, and all have defaults"}
)

#: Files that quote a word which the style guide has no use for.
ODD_WORDS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "LICENSE": "as its authors wrote it",
        "docs/how-to/deploy.md": "an option of systemctl",
        "docs/requirements.md": "as they were given",
        "scripts/house.py": "counts these words",
        "scripts/pgbouncer.py": "a user of the system",
        "tests/end_to_end/programs.py": "a user of the system",
        "tests/servers/postgres.py": "a user of the system",
    }
)

#: Module-level names that may hold something mutable.
MUTABLE_STATE: Final[Mapping[str, str]] = MappingProxyType({})

#: Modules that are used from outside the package, so that nothing inside needs to import them.
ENTRY_POINTS: Final = frozenset(
    {
        "packhorse.telemetry",
        "packhorse.telemetry.otel",
        "packhorse.hosting.penguiflow",
        "packhorse.telemetry.sentry",
        "packhorse",  # users
        "packhorse.__main__",  # python -m packhorse
        "packhorse.cli.main",  # the console script
        "packhorse.protocol",  # users who speak the wire protocol
        "packhorse.testing",  # users' tests
        "packhorse.testing.conformance",  # authors of stores
        "packhorse.testing.plugin",  # users' tests, as a pytest plugin
    }
)
