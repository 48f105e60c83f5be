# SPDX-License-Identifier: MIT
"""Who a benchmark run measures beside Packhorse, and what becomes of those it cannot."""

from __future__ import annotations

import ast
import io
import json
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest

from benchmarks.bench import Bench
from benchmarks.contestants import Contestant
from benchmarks.ledger import Ledger
from benchmarks.measures import drain, submit
from benchmarks.peers import catalogue, environments, submitting
from benchmarks.peers.catalogue import PEERS, Peer, invited
from benchmarks.peers.environments import Absent
from benchmarks.report import add_earlier, after_failures
from benchmarks.settings import FULL, QUICK
from benchmarks.stage import PeerNote
from benchmarks.stores.server_bounds import fastest, postgres_bounds, redis_bounds
from comparison.catalogue import CONTESTANTS

HERE = Path(catalogue.__file__).parent


def contestant(label: str, pace: float | None) -> Contestant:
    return Contestant(
        label=label,
        program=label,
        environment=lambda _: {},
        worker=lambda _: [],
        finished=lambda _: 0,
        pace=pace,
    )


class TestCatalogue:
    @pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.name)
    def test_a_peer_says_its_versions_and_how_it_is_set(self, peer: Peer) -> None:
        assert re.match(rf"{peer.package} [0-9]+\.[0-9]+", peer.version)
        assert peer.settings
        assert peer.pace > 0

    @pytest.mark.parametrize(
        "peer", [peer for peer in PEERS if peer.is_python], ids=lambda p: p.name
    )
    def test_a_peers_module_has_the_ways_the_catalogue_says(self, peer: Peer) -> None:
        source = ast.parse((HERE / f"{peer.name}_app.py").read_text(encoding="utf-8"))

        named = {
            node.name
            for node in source.body
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        }
        assert ("ways" in named) == peer.one
        assert ("async_ways" in named) == peer.async_one

    @pytest.mark.parametrize("path", sorted(HERE.glob("*.txt")), ids=lambda path: path.stem)
    def test_everything_installed_is_pinned(self, path: Path) -> None:
        lines = path.read_text(encoding="utf-8").splitlines()

        assert lines
        assert all(re.fullmatch(r"[a-z0-9_.-]+==[0-9][a-z0-9.]*", line) for line in lines)
        assert path.stem in {peer.name for peer in PEERS} | {one.name for one in CONTESTANTS}

    def test_who_is_left_out_or_absent_is_told_with_the_reason(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def nowhere(name: str, minimum: tuple[int, int]) -> Path:
            raise Absent(f"{name} needs {minimum}")

        monkeypatch.setattr(catalogue, "python_programs", nowhere)

        peers = invited("postgres", ["oban"], str, lambda _: None)

        reasons = {note.label: note.absent for note in peers.notes}
        assert reasons["Oban"] == "oban needs (3, 12)"
        assert reasons["PgQueuer"] == "left out of this run"
        assert peers.chosen(lambda _: True) == []

    def test_a_peer_runs_the_programs_of_its_own_environment(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setattr(catalogue, "python_programs", lambda name, _: tmp_path / name)

        peers = invited(
            "redis", ["taskiq"], lambda folder: f"redis://{folder.name}", lambda _: None
        )

        [taskiq] = peers.chosen(lambda peer: peer.async_one)
        assert taskiq.worker(tmp_path)[0] == str(tmp_path / "taskiq" / "taskiq")
        assert taskiq.producer is not None
        assert taskiq.producer("async one")[0] == str(tmp_path / "taskiq" / "python")
        assert taskiq.environment(Path("7"))["BENCHMARK_SERVER"] == "redis://7"


class TestEnvironments:
    def test_this_interpreter_will_do_where_it_is_new_enough(self) -> None:
        assert environments.find_python((3, 11)) == Path(sys.executable)

    def test_a_name_on_the_path_that_leads_nowhere_is_passed_over(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        shim = tmp_path / "python3.99"
        shim.write_text("#!/bin/sh\nexit 127\n")
        shim.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
        monkeypatch.setattr(environments, "_NEWEST_MINOR", 99)

        with pytest.raises(Absent, match=r"Python 3\.99"):
            environments.find_python((3, 99))

    def test_an_environment_is_made_again_only_from_something_else(self, tmp_path: Path) -> None:
        target = tmp_path / "peer"
        made: list[int] = []

        def make() -> None:
            target.mkdir()
            made.append(len(made))

        for source in ("one", "one", "other", "other"):
            environments.made(target, source, make)

        assert made == [0, 1]

    def test_half_an_environment_is_none(self, tmp_path: Path) -> None:
        target = tmp_path / "peer"

        def fail() -> None:
            target.mkdir()
            raise Absent("no network")

        with pytest.raises(Absent):
            environments.made(target, "one", fail)

        environments.made(target, "one", target.mkdir)
        assert target.exists()

    def test_without_node_its_peer_is_absent(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PATH", "")

        with pytest.raises(Absent, match="node"):
            environments.node_modules("bullmq")


class TestSubmitting:
    @pytest.fixture
    def submitted(self, monkeypatch: pytest.MonkeyPatch) -> list[object]:
        seen: list[object] = []

        @contextmanager
        def ways() -> Iterator[submitting.Ways]:
            yield submitting.Ways(one=seen.append, many=seen.append)

        module = ModuleType("a_peer")
        module.ways = ways  # type: ignore[attr-defined]  # made for this test
        monkeypatch.setitem(sys.modules, "a_peer", module)
        monkeypatch.setattr(sys, "stdin", io.StringIO("2\n1500\n"))
        return seen

    def test_each_line_is_a_turn_that_is_told(
        self, submitted: list[object], capsys: pytest.CaptureFixture[str]
    ) -> None:
        submitting.main("a_peer", "one")

        told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert [turn["count"] for turn in told] == [2, 1500]
        assert all(turn["seconds"] > 0 for turn in told)
        assert submitted == [0, 1, *range(1500)]

    def test_many_go_a_thousand_at_a_time(self, submitted: list[object]) -> None:
        submitting.main("a_peer", "many")

        assert submitted == [range(2), range(1000), range(1000, 1500)]


class TestServerBounds:
    def test_the_fastest_peer_is_the_fastest_in_python(self) -> None:
        ledger = Ledger()
        for label, rate in (("Dramatiq", 900.0), ("Huey", 1000.0), ("BullMQ (Node)", 5000.0)):
            ledger.record(submit.ONE, label, rate, "jobs/s")

        assert fastest("redis", submit.ONE, ledger) == "Huey"
        assert fastest("redis", submit.MANY, ledger) is None
        assert fastest("postgres", submit.ONE, ledger) is None

    def test_a_bulk_submit_is_held_against_one_by_one_where_no_peer_has_another(self) -> None:
        ledger = Ledger()
        ledger.record(submit.ONE, "Huey", 1000.0, "jobs/s")

        [bound] = [one for one in redis_bounds(FULL, ledger) if one.at_least == 2]

        assert (bound.measure, bound.against_measure) == (submit.MANY, submit.ONE)
        assert bound.against == "Huey"

    @pytest.mark.parametrize("bounds", [postgres_bounds, redis_bounds])
    def test_no_two_bounds_say_the_same(self, bounds: object) -> None:
        assert callable(bounds)
        sentences = [bound.says for bound in bounds(FULL, Ledger())]

        assert len(set(sentences)) == len(sentences)


class TestFailures:
    def bench(self, tmp_path: Path) -> Bench:
        return Bench(tmp_path, QUICK, Ledger(), stage=None)  # type: ignore[arg-type]  # not asked

    def test_a_peer_that_fails_takes_no_part_from_then_on(self, tmp_path: Path) -> None:
        bench, peer = self.bench(tmp_path), contestant("Huey", 1.0)

        with bench.forgiving(peer):
            raise RuntimeError("it ended\n| at once")

        assert not bench.takes_part(peer)
        note = after_failures(PeerNote("Huey", "huey 3", "as it comes"), bench.failed)
        assert note.absent == "it failed: it ended ¦ at once"

    def test_when_we_fail_so_does_the_run(self, tmp_path: Path) -> None:
        bench = self.bench(tmp_path)

        with pytest.raises(RuntimeError, match="ours"), bench.forgiving(contestant("us", None)):
            raise RuntimeError("ours")


class TestMerging:
    def test_what_was_not_measured_again_is_kept(self, tmp_path: Path) -> None:
        earlier = {
            "facts": {"run": "9 rounds"},
            "peers": [
                {"label": "us", "version": "us 1", "settings": "as it comes"},
                {"label": "them", "version": "them 1", "settings": "nowhere", "absent": "no"},
            ],
            "figures": [
                {"measure": drain.RATE, "contestant": "us", "unit": "jobs/s", "values": [1.0]},
                {"measure": submit.ONE, "contestant": "us", "unit": "jobs/s", "values": [2.0, 3.0]},
            ],
        }
        (tmp_path / "redis.json").write_text(json.dumps(earlier))
        ledger, facts = Ledger(), {"run": "3 rounds"}
        ledger.record(drain.RATE, "us", 5.0, "jobs/s")

        notes = add_earlier(tmp_path, "redis", ledger, facts)

        assert notes == {"us": PeerNote("us", "us 1", "as it comes")}
        assert {one.measure: one.values for one in ledger} == {
            drain.RATE: (5.0,),
            submit.ONE: (2.0, 3.0),
        }
        assert facts["run"] == "3 rounds; the rest from an earlier run: 9 rounds"
