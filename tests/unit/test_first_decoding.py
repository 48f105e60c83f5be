# SPDX-License-Identifier: MIT
"""Threads that are the first to decode a value of a type, at once, do not end the process."""

from __future__ import annotations

import subprocess
import sys
from typing import Final

import pytest

#: In forks, since a process decodes for the first time only once.
_SCRIPT: Final = """
import importlib, os, sys, threading
import msgspec

module, name, text = sys.argv[1:]
kind = getattr(importlib.import_module(module), name)

def race():
    sys.setswitchinterval(1e-6)
    ready = threading.Barrier(6)

    def decode():
        ready.wait()
        msgspec.json.decode(text, type=kind)

    threads = [threading.Thread(target=decode) for _ in range(6)]
    for each in threads: each.start()
    for each in threads: each.join()

for _ in range(60):
    child = os.fork()
    if not child:
        race()
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        sys.exit("a child crashed")
"""
_MEMBER: Final = '{"member":{"group":"batch//a/1","node":"c0:1"}}'


@pytest.mark.parametrize(
    ("module", "name", "text"),
    [
        ("packhorse.core.job", "JobOptions", _MEMBER),
        ("packhorse.core.batches", "Chunk", '{"first":0,"items":[1]}'),
        ("packhorse.core.workflows", "HeadDocument", '{"name":"a","created_us":1,"nodes":1}'),
    ],
)
def test_the_first_value_of_a_type_may_be_decoded_by_many_threads(
    module: str, name: str, text: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT, module, name, text],
        check=False,
        capture_output=True,
        text=True,
        timeout=50,
    )

    assert done.returncode == 0, done.stderr
