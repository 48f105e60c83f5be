# SPDX-License-Identifier: MIT
"""What a benchmark run leaves behind, and how it counts; nothing here is timed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree as ET

import msgspec
import pytest

from benchmarks import probe
from benchmarks.bench import Bench, rotated
from benchmarks.bounds import judge_all
from benchmarks.chart import bar_chart
from benchmarks.ledger import Ledger
from benchmarks.measures import saturated
from benchmarks.report import Report, number, page, write
from benchmarks.settings import FULL, QUICK
from benchmarks.sqlite_bounds import sqlite_bounds
from benchmarks.stores.sqlite import sqlite_stage
from benchmarks.workloads import bare_sqlite

SVG = "{http://www.w3.org/2000/svg}"


def small_ledger() -> Ledger:
    ledger = Ledger()
    for contestant, rate in (("Packhorse FULL", 30_000.0), ("Huey FULL", 1_000.0)):
        for factor in (0.9, 1.0, 1.1):
            ledger.record("drain", contestant, rate * factor, "jobs/s")
    return ledger


def small_report(ledger: Ledger) -> Report:
    return Report(
        title="Measured",
        facts={"machine": "two <cores>"},
        settings=QUICK,
        verdicts=judge_all(sqlite_bounds(QUICK), ledger),
        charted=("drain",),
    )


class TestReport:
    def test_the_page_says_for_every_bound_whether_it_was_met(self) -> None:
        ledger = small_ledger()

        text = page(small_report(ledger), ledger, "chart.svg")

        [against_peer] = [line for line in text.splitlines() if "drain against Huey" in line]
        assert "≥ 10 ×" in against_peer
        assert "30 ×" in against_peer
        assert "**met**" in against_peer
        assert text.count("**not measured**") == len(sqlite_bounds(QUICK)) - 1
        assert "| drain | Packhorse FULL | 30,000 | 27,000 – 33,000 | jobs/s |" in text

    def test_page_chart_and_data_are_written_side_by_side(self, tmp_path: Path) -> None:
        ledger = small_ledger()

        write(small_report(ledger), ledger, tmp_path / "results", "sqlite")

        data = json.loads((tmp_path / "results" / "sqlite.json").read_text())
        assert data["figures"][0]["values"] == [27_000.0, 30_000.0, 33_000.0]
        assert data["figures"][0]["estimate"]["middle"] == 30_000.0
        assert data["bounds"][0]["result"] == "met"
        assert data["settings"]["rounds"] == QUICK.rounds
        assert "(sqlite.svg)" in (tmp_path / "results" / "sqlite.md").read_text()
        assert (tmp_path / "results" / "sqlite.svg").exists()

    def test_the_chart_has_a_bar_for_each_contestant_as_long_as_its_median(self) -> None:
        root = ET.fromstring(bar_chart(small_ledger(), ["drain", "never measured"]))

        bars = [float(bar.attrib["width"]) for bar in root.iter(f"{SVG}rect")]
        labels = [text.text for text in root.iter(f"{SVG}text")]
        assert len(bars) == 2
        assert bars[0] == pytest.approx(30 * bars[1], rel=0.02)
        assert {"Packhorse FULL", "Huey FULL", "30,000", "1,000"} <= set(labels)

    @pytest.mark.parametrize(
        ("value", "text"), [(45_123.4, "45,123"), (99.94, "99.9"), (0.4567, "0.457"), (0.0, "0")]
    )
    def test_numbers_show_the_digits_that_mean_something(self, value: float, text: str) -> None:
        assert number(value) == text


class TestMethod:
    def test_a_full_run_has_at_least_nine_rounds(self) -> None:
        assert FULL.rounds >= 9

    def test_every_contestant_is_first_in_some_round(self) -> None:
        orders = [rotated(["a", "b", "c"], number) for number in range(3)]

        assert [order[0] for order in orders] == ["a", "b", "c"]
        assert all(sorted(order) == ["a", "b", "c"] for order in orders)

    def test_no_two_bounds_say_the_same(self) -> None:
        sentences = [bound.says for bound in sqlite_bounds(FULL)]

        assert len(set(sentences)) == len(sentences)


class TestProbe:
    @pytest.fixture
    def hit(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
        probe.new_probe(tmp_path / "probe", 3)
        monkeypatch.setenv(probe.PROBE, str(tmp_path / "probe"))
        return probe.hitter()

    def test_the_probe_counts_and_notes_first_and_last(
        self, hit: Callable[[], None], tmp_path: Path
    ) -> None:
        path = tmp_path / "probe"
        assert probe.read(path).count == 0

        for _ in range(3):
            hit()

        reading = probe.read(path)
        assert reading.count == 3
        assert reading.last > reading.first > 0
        assert reading.rate == 2 / (reading.last - reading.first)
        assert reading.cpu_seconds > 0
        assert probe.reached(path, 3)()
        assert not probe.reached(path, 4)()

    def test_two_processes_are_added_up(self, hit: Callable[[], None], tmp_path: Path) -> None:
        other = probe.hitter()

        hit()
        other()

        assert probe.read(tmp_path / "probe").count == 2

    def test_without_a_probe_nothing_is_noted(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv(probe.PROBE, raising=False)

        probe.hitter()()

    def test_a_stamp_is_the_instant_of_its_job(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        probe.new_stamps(tmp_path / "stamps", 2)
        monkeypatch.setenv(probe.STAMPS, str(tmp_path / "stamps"))

        probe.stamper()(1)

        first, second = probe.read_stamps(tmp_path / "stamps")
        assert first == 0
        assert second > 0


class TestSaturated:
    @pytest.mark.req("S2-28")
    def test_a_submit_returns_in_time_while_a_worker_has_more_to_do_than_it_can(
        self, tmp_path: Path
    ) -> None:
        ledger = Ledger()
        with sqlite_stage(tmp_path, ()) as stage:
            settings = msgspec.structs.replace(QUICK, stepped=10_000)
            saturated.measure(Bench(tmp_path, settings, ledger, stage))

        verdicts = judge_all(sqlite_bounds(QUICK), ledger)
        [verdict] = [each for each in verdicts if each.result != "not measured"]
        assert verdict.bound == saturated.BOUND
        assert verdict.result == "met"


class TestBareLoop:
    def test_the_bare_loop_runs_every_job_once_and_keeps_results(self, tmp_path: Path) -> None:
        path = tmp_path / "bare.db"
        connection = bare_sqlite.connect(path, "NORMAL")
        bare_sqlite.insert_many(connection, range(9))
        bare_sqlite.insert_one(connection, 9)
        seen: list[int] = []

        async def handler(number: int) -> int:
            seen.append(number)
            return number

        done = asyncio.run(bare_sqlite.drain(connection, 4, handler))
        connection.close()

        assert done == 10
        assert seen == list(range(10))
        assert bare_sqlite.finished(path) == 10
