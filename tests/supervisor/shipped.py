# SPDX-License-Identifier: MIT
"""The expressions of the shipped dashboard and alert rules, and what a worker exposes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml

from packhorse.core.policies.series import OUTCOMES

DEPLOY: Final = Path(__file__).resolve().parents[2] / "deploy"
DASHBOARD: Final = DEPLOY / "grafana" / "packhorse.json"
RULES: Final = DEPLOY / "prometheus" / "alerts.yml"
#: Suffixes of the samples of a histogram.
PARTS: Final = ("_bucket", "_sum", "_count")
_SAMPLE: Final = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$", re.MULTILINE)
_LABEL: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def expressions() -> Iterator[tuple[str, str]]:
    """Each expression with what asks for it; the dashboard's variables are filled in."""
    document: Any = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    for panel in document["panels"]:
        for target in panel["targets"]:
            filled = target["expr"].replace("$__rate_interval", "1m")
            yield panel["title"], re.sub(r'"\$\w+"', '".*"', filled)
    for variable in document["templating"]["list"]:
        if variable["type"] == "query":
            found = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["query"])
            assert found is not None, variable["query"]
            yield variable["name"], f"count by ({found[2]}) ({found[1]})"
    rules: Any = yaml.safe_load(RULES.read_text(encoding="utf-8"))
    for group in rules["groups"]:
        for rule in group["rules"]:
            yield rule["alert"], rule["expr"]


def samples(text: str) -> dict[str, list[dict[str, str]]]:
    """The labels of each sample of an exposition, by its name."""
    found: dict[str, list[dict[str, str]]] = {}
    for name, labels, _ in _SAMPLE.findall(text):
        found.setdefault(name, []).append(dict(_LABEL.findall(labels)))
    return found


def value(text: str, name: str, **labels: str) -> float:
    """One figure of an exposition; 0 if it is not there."""
    for found, inside, number in _SAMPLE.findall(text):
        if found == name and dict(_LABEL.findall(inside)) == labels:
            return float(number)
    return 0.0


def problems(expression: str, exposed: dict[str, list[dict[str, str]]]) -> list[str]:
    """What an expression names that is not exposed."""
    import promql_parser

    found: list[str] = []
    _walk(promql_parser.parse(expression), exposed, found)
    return found


def _walk(node: Any, exposed: dict[str, list[dict[str, str]]], found: list[str]) -> None:
    if hasattr(node, "vector_selector"):
        node = node.vector_selector
    if hasattr(node, "matchers"):
        found += _unknown(node.name, node.matchers.matchers, exposed)
        return
    modifier = getattr(node, "modifier", None)
    for label in getattr(modifier, "labels", None) or ():
        if not any(label in each for rows in exposed.values() for each in rows):
            found.append(f"no sample has a label {label}")
    for name in ("lhs", "rhs", "expr", "param"):
        if getattr(node, name, None) is not None:
            _walk(getattr(node, name), exposed, found)
    for argument in getattr(node, "args", None) or ():
        _walk(argument, exposed, found)


def _unknown(name: str, matchers: Any, exposed: dict[str, list[dict[str, str]]]) -> Iterator[str]:
    rows = exposed.get(name)
    if rows is None:
        yield f"{name} is not exposed"
        return
    for each in matchers:
        if not any(each.name in row for row in rows):
            yield f"{name} has no label {each.name}"
        elif each.name == "outcome" and not set(each.value.split("|")) <= set(OUTCOMES):
            yield f"{name} has no outcome {each.value}"
        elif each.name == "state" and each.value not in {row["state"] for row in rows}:
            yield f"{name} has no state {each.value}"
