# SPDX-License-Identifier: MIT
"""Rules about text: SQL, Markdown, and everything that is kept in the repository.

The patterns are written so that they do not find themselves.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

QUERY = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)
NUMBERED = re.compile(r"\?\d")
FENCE = re.compile(r"^\s*(```|~~~)")
TITLE = re.compile(r"^# \S")
UNFINISHED = re.compile(r"\b(?:TO[D]O|FIX[M]E)\b")
REGISTRY = re.compile(r"py(?:pi|thonhosted)\.org|npm(?:js)\.(?:com|org)|--(?:extra-)?index-(?:url)")
#: No comparable project uses them, in place of the thing that acts; also as parts of names.
ODD_WORD = re.compile(
    r"(?<![a-z])(?:whoeve[r]|who[m]|somebod[y]|nobod[y]|anybod[y]|ane[w])(?![a-z])", re.IGNORECASE
)
MACHINE_PATH = re.compile(r"(?<![\w.])/(?:work|root|home)\b")

TEXT_SUFFIXES = frozenset(
    {
        *("", ".cfg", ".ini", ".json", ".lua", ".md", ".py", ".sh", ".sql", ".toml"),
        *(".txt", ".yaml", ".yml"),
    }
)


def repository_files(root: Path) -> list[Path]:
    """Every text file that is, or would be, committed."""
    try:
        names = _names_from_git(root)
    except (OSError, subprocess.CalledProcessError):
        names = _names_from_disk(root)  # an unpacked archive has no history to ask
    paths = (root / name for name in names)
    return sorted(path for path in paths if path.suffix in TEXT_SUFFIXES and path.is_file())


def _names_from_git(root: Path) -> list[str]:
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listing = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    return [name for name in listing.stdout.split("\0") if name]


def _names_from_disk(root: Path) -> list[str]:
    paths = (path.relative_to(root) for path in root.rglob("*"))
    return [
        path.as_posix()
        for path in paths
        if path.parts[0] == ".ci" or not any(part.startswith(".") for part in path.parts)
    ]


def odd_words(name: str, text: str) -> Iterator[tuple[str, str]]:
    """A file that says that anyone acts, where it could name the thing that does."""
    for number, line in enumerate(text.splitlines(), 1):
        if found := ODD_WORD.search(line):
            yield name, f"{name}:{number}: {found[0]!r}: name the thing that acts"


def named_queries(name: str, text: str) -> Iterator[tuple[str, str]]:
    """Each query of a topic, and its text; any other file as a whole."""
    if "queries/" not in name:
        yield name, text
        return
    first, *rest = QUERY.split(text)
    if first.strip():
        yield name, first
    for query, words in zip(rest[::2], rest[1::2], strict=True):
        yield f"{name}: {query}", words.strip()


def query_file(name: str, text: str, limit: int) -> Iterator[str]:
    lines = text.splitlines()
    if len(lines) > limit:
        yield f"{name}: {len(lines)} lines, at most {limit}"
    if not lines or not lines[0].startswith("-- "):
        yield f"{name}: the first line is a comment that says what it does"
    if NUMBERED.search(text):
        yield f"{name}: a numbered parameter, of which Python 3.12.3 warns"


def long_lua_functions(name: str, text: str, limit: int) -> Iterator[str]:
    """Functions that begin at the left margin and end with the next `end` there."""
    begun, title = 0, ""
    for number, line in enumerate(text.splitlines()):
        if re.match(r"(?:local )?function ", line):
            begun, title = number, line
        elif line == "end" and title:
            if number - begun - 1 > limit:
                yield f"{name}: {title}: {number - begun - 1} lines, at most {limit}"
            title = ""


def page_titles(name: str, text: str) -> Iterator[str]:
    titles, fenced = 0, False
    for line in text.splitlines():
        fenced ^= bool(FENCE.match(line))
        titles += not fenced and bool(TITLE.match(line))
    if titles != 1:
        yield f"{name}: {titles} titles, a page has one"


def unwanted_text(name: str, text: str) -> Iterator[str]:
    unwanted = {"a registry host": REGISTRY, "a path of one machine": MACHINE_PATH}
    if not name.startswith("docs/adr/"):
        unwanted["unfinished work; write an issue instead"] = UNFINISHED
    for number, line in enumerate(text.splitlines(), start=1):
        for meaning, pattern in unwanted.items():
            if pattern.search(line):
                yield f"{name}:{number}: {meaning}"
