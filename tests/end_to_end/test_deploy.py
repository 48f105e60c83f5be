# SPDX-License-Identifier: MIT
"""The files of deploy/: every command, port, address and time in them is as it is here."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from packhorse import Packhorse
from packhorse.cli.main import root
from packhorse.client.tokens import Tokens
from tests.docs.pages import ROOT
from tests.docs.test_examples import problems
from tests.end_to_end.support import World
from tests.servers.redis import free_port
from tests.supervisor.yard import PATIENCE_S, asked, until
from tests.support.twins import STORES
from tests.web.support import Web

DEPLOY: Final = ROOT / "deploy"
PORT: Final = "9191"
#: How long a worker may take to stop by itself: --shutdown-timeout, the grace of handlers, and
#: the last writes that its parent waits for.
STOPS_S: Final = 30 + 5 + 12
JOBS: Final = """
from packhorse import Packhorse
app = Packhorse()

@app.task
def add(a: int, b: int) -> int:
    return a + b
"""


def steps() -> list[tuple[str, str]]:
    """The instructions of the Dockerfile, in order."""
    text = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    lines = re.sub(r"^#.*\n", "", text, flags=re.MULTILINE).replace("\\\n", " ").splitlines()
    return [(line.partition(" ")[0], line.partition(" ")[2].strip()) for line in lines if line]


def step(name: str) -> str:
    """The last instruction of a name."""
    return [rest for found, rest in steps() if found == name][-1]


def documents(name: str) -> list[Any]:
    return list(yaml.safe_load_all((DEPLOY / name).read_text(encoding="utf-8")))


def container(name: str) -> Any:
    return documents(f"kubernetes/{name}.yaml")[0]["spec"]["template"]["spec"]["containers"][0]


def probe_paths(name: str) -> list[str]:
    found = container(name)
    return [found[each]["httpGet"]["path"] for each in found if each.endswith("Probe")]


def commands() -> Iterator[str]:
    """What follows `packhorse` wherever it is called."""
    assert json.loads(step("ENTRYPOINT")) == ["packhorse"]
    yield shlex.join(json.loads(step("CMD")))
    for service in documents("compose.yaml")[0]["services"].values():
        yield shlex.join(service.get("command", ["worker"]) if "build" in service else ["worker"])
    for name in ("worker", "dashboard"):
        yield shlex.join(container(name)["args"])
    for unit in (DEPLOY / "systemd").iterdir():
        yield from re.findall(r"^ExecStart=\S+/packhorse (.*)$", unit.read_text(), re.MULTILINE)
    for path in DEPLOY.rglob("*"):
        if path.is_file():
            found = re.findall(
                r"\b(?:packhorse|worker|--) (tokens create \w+ --scope \w+)", path.read_text()
            )
            yield from found


def installed(folder: Path) -> Path:
    """Install as the first stage does, from what it copies and nothing else."""
    source, site = folder / "source", folder / "site"
    source.mkdir()
    for name, rest in steps():
        if name != "COPY" or "--from" in rest:
            continue
        *names, _ = rest.split()
        for one in names:
            copy = shutil.copytree if (ROOT / one).is_dir() else shutil.copy
            copy(ROOT / one, source / one)
    (pip,) = [rest for name, rest in steps() if name == "RUN" and "/bin/pip install" in rest]
    assert '".[${EXTRAS}]"' in pip
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=source, check=True, capture_output=True, timeout=PATIENCE_S)
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
        wheel.extractall(site)
    assert (site / "packhorse" / "cli" / "main.py").is_file()  # else this environment's would run
    return site


def add(a: int, b: int) -> int:
    raise NotImplementedError  # it runs in the worker


def succeeds(command: list[str]) -> bool:
    return subprocess.run(command, check=False, capture_output=True).returncode == 0


@pytest.mark.req("S4-32")
@pytest.mark.parametrize("store", STORES)
def test_what_the_dockerfile_installs_runs_a_worker_that_is_healthy_and_stops_when_told(
    tmp_path: Path, world: World
) -> None:
    site, port = installed(tmp_path), str(free_port())
    given = dict(pair.split("=", 1) for pair in step("ENV").split())
    assert given["PACKHORSE_HTTP"] == f"0.0.0.0:{step('EXPOSE')}" == f"0.0.0.0:{PORT}"
    (tmp_path / "jobs.py").write_text(JOBS, encoding="utf-8")
    environment = {
        **{name: value for name, value in os.environ.items() if "PACKHORSE" not in name},
        "PACKHORSE_HTTP": f"127.0.0.1:{port}",
        "PYTHONPATH": str(site),
        "PACKHORSE_APP": "jobs:app",
        "PACKHORSE_URL": world.url,
    }
    entry = [sys.executable, "-m", *json.loads(step("ENTRYPOINT")), *json.loads(step("CMD"))]
    worker = subprocess.Popen(entry, cwd=tmp_path, env=environment)
    try:
        words: list[str] = json.loads(step("HEALTHCHECK").partition(" CMD ")[2])
        check = [sys.executable, *(word.replace(PORT, port) for word in words[1:])]
        until("its health", lambda: succeeds(check))
        app = Packhorse(world.url)
        assert app.task(add).enqueue(1, 2).result(timeout=PATIENCE_S) == 3
        for path in probe_paths("worker"):
            until(path, lambda: asked(f"http://127.0.0.1:{port}{path}")[0] == 200)  # noqa: B023 - at once
        assert app.insights.workers()[0].pid != worker.pid  # under a parent that is process 1
        worker.send_signal(getattr(signal, step("STOPSIGNAL")))
        assert worker.wait(PATIENCE_S) == 0
        app.close()
    finally:
        worker.kill()
        worker.wait()


@pytest.mark.parametrize("line", sorted(set(commands())))
def test_every_command_line_is_one_of_the_command(line: str) -> None:
    assert list(problems(line, root)) == []


def test_workers_are_given_the_time_they_need_to_stop_and_ports_agree() -> None:
    worker = container("worker")
    pod = documents("kubernetes/worker.yaml")[0]["spec"]["template"]["spec"]
    unit = (DEPLOY / "systemd" / "packhorse-worker@.service").read_text(encoding="utf-8")
    composed = documents("compose.yaml")[0]["services"]["worker"]
    given = {each["name"]: each.get("value") for each in worker["env"]}

    assert pod["terminationGracePeriodSeconds"] > STOPS_S
    assert int(composed["stop_grace_period"].removesuffix("s")) > STOPS_S
    assert int(re.findall(r"^TimeoutStopSec=(\d+)$", unit, re.MULTILINE)[0]) > STOPS_S
    assert given["PACKHORSE_HTTP"] == f"0.0.0.0:{worker['ports'][0]['containerPort']}"
    assert str(worker["ports"][0]["containerPort"]) == PORT
    assert f"--uid {worker['securityContext']['runAsUser']} " in step("RUN")


async def test_the_scaler_reads_the_demand_with_a_token_that_may_only_look() -> None:
    app = Packhorse("memory://")
    app.queue("mail")
    authentication, scaled = documents("kubernetes/keda.yaml")
    (trigger,) = scaled["spec"]["triggers"]
    service = documents("kubernetes/dashboard.yaml")[1]
    host, path = re.findall(r"http://([^/]+)(/.*)", trigger["metadata"]["url"])[0]
    token = Tokens(app.store).create("keda", scopes=["viewer"]).text

    answer = await Web(app, token=token).ask("GET", path)

    assert answer.json[trigger["metadata"]["valueLocation"]] == 0
    assert host == f"{service['metadata']['name']}:{service['spec']['ports'][0]['port']}"
    assert scaled["spec"]["scaleTargetRef"]["name"] == "packhorse-worker"
    assert trigger["authenticationRef"]["name"] == authentication["metadata"]["name"]
    for probe in probe_paths("dashboard"):
        assert (await Web(app).ask("GET", probe, token=None)).status == 200
