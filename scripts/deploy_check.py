# SPDX-License-Identifier: MIT
"""The files of deploy/, looked at by the programs that read them.

    python -m scripts.deploy_check [--container]

Kubernetes: the schemas of its objects, which a package brings into `.cache/`. systemd:
`systemd-analyze verify`. With `--container` an image is built by the Dockerfile with podman and a
container of it runs a job, answers its health check and stops when told. Base images cannot be
pulled everywhere, so that one stands on a small Debian that mmdebstrap makes. Podman, runc
and mmdebstrap are Debian's packages, and this needs root.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import yaml

from scripts.pytest_runs import ROOT

DEPLOY: Final = ROOT / "deploy"
CACHE: Final = ROOT / ".cache" / "deploy"
#: Carries the schemas; too large to be installed with the tools.
SCHEMAS: Final = "kubernetes-validate==1.37.0"
#: Kinds of others, whose schemas it does not have.
FOREIGN: Final = "keda.sh/"
BASE: Final = "localhost/packhorse-base"
IMAGE: Final = "localhost/packhorse"
#: What the image is made of, beside what this environment has: Debian's Python is older.
WHEELS: Final = ("hatchling", "async-timeout")
#: Podman asks for more than a machine inside another may give.
LIMITS: Final = ("--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024")
JOBS: Final = """
from packhorse import Packhorse
app = Packhorse()

@app.task
def add(a: int, b: int) -> int:
    return a + b
"""


def main(arguments: Sequence[str]) -> int:
    """Run everything; 0 if all is well."""
    wrong = [*_kubernetes(), *_systemd()]
    if "--container" in arguments:
        wrong += _container()
    for line in wrong:
        print(line)
    return 1 if wrong else 0


def _run(*command: str | Path, **settings: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, check=False, capture_output=True, text=True, **settings)  # noqa: S603 - our own


def _pip(*words: str | Path) -> None:
    command = (sys.executable, "-m", "pip", "--disable-pip-version-check", *words)
    subprocess.run(command, check=True)  # noqa: S603 - our own


def _kubernetes() -> list[str]:
    packages = CACHE / SCHEMAS
    if not packages.is_dir():
        _pip("install", "-qq", "--target", packages, SCHEMAS)
    sys.path.insert(0, str(packages))
    kubernetes_validate: Any = import_module("kubernetes_validate")
    wrong = []
    for path in sorted((DEPLOY / "kubernetes").iterdir()):
        for document in yaml.safe_load_all(path.read_text(encoding="utf-8")):
            named = f"{path.name}: {document['kind']} {document['metadata']['name']}"
            if document["apiVersion"].startswith(FOREIGN):
                print(f"{named} is of {FOREIGN} and not looked at here")
                continue
            try:
                kubernetes_validate.validate(
                    document, kubernetes_validate.latest_version(), strict=True
                )
            except kubernetes_validate.ValidationError as error:
                wrong.append(f"{named}: {error}")
            else:
                print(f"{named} is valid")
    return wrong


def _systemd() -> list[str]:
    program = shutil.which("systemd-analyze")
    if program is None:
        return ["systemd-analyze is not there: apt-get install systemd"]
    wrong = []
    with tempfile.TemporaryDirectory() as folder:
        for path in sorted((DEPLOY / "systemd").iterdir()):
            # A program that is there, in the place of one of yours.
            text = path.read_text(encoding="utf-8").replace(
                "/srv/%i/venv/bin/packhorse", "/bin/true"
            )
            unit = Path(folder, path.name.replace("@", "@shop"))
            unit.write_text(text, encoding="utf-8")
            found = _run(program, "verify", unit)
            if found.returncode or found.stderr:
                wrong.append(f"{path.name}: {found.stderr.strip()}")
            else:
                print(f"{path.name} is valid")
    return wrong


def _container() -> list[str]:
    for program in ("podman", "runc", "mmdebstrap"):
        if shutil.which(program) is None:
            return [f"{program} is not there: apt-get install podman runc mmdebstrap"]
    wheels = CACHE / "wheels"
    if not wheels.is_dir():
        _pip(
            "download",
            "-qq",
            "-d",
            wheels,
            "-c",
            ROOT / "constraints.txt",
            *WHEELS,
            f"{ROOT}[postgres,redis,web]",
        )
    base = CACHE / "base.tar"
    if not base.is_file():
        include = "--include=python3,python3-venv,python3-pip,ca-certificates"
        subprocess.run(["mmdebstrap", "--variant=minbase", include, "bookworm", base], check=True)  # noqa: S603, S607
    return _built_and_run(base, wheels)


def _built_and_run(base: Path, wheels: Path) -> list[str]:
    os.environ |= {"STORAGE_DRIVER": "vfs", "BUILDAH_ISOLATION": "chroot"}
    podman = ("podman", "--root", CACHE / "images", "--runroot", CACHE / "run", "--runtime", "runc")
    offline = (
        *("--volume", f"{wheels}:/wheels:ro", "--build-arg", f"BASE={BASE}"),
        *("--env", "PIP_NO_INDEX=1", "--env", "PIP_FIND_LINKS=/wheels"),
    )
    commands: tuple[tuple[str | Path, ...], ...] = (
        ("import", base, BASE),
        ("build", "--format", "docker", *offline, "-f", DEPLOY / "Dockerfile", "-t", IMAGE, ROOT),
    )
    for command in commands:
        print(*command)
        subprocess.run([*podman, *command], check=True)  # noqa: S603 - our own
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "jobs.py").write_text(JOBS, encoding="utf-8")
        Path(folder).chmod(0o755)
        settings = ("-e", "PACKHORSE_APP=jobs:app", "-e", "PACKHORSE_URL=sqlite:////data/jobs.db")
        more = ("--network=none", "-v", f"{folder}:/app:ro", *LIMITS)
        started = _run(*podman, "run", "-d", *more, *settings, IMAGE)
        name = started.stdout.strip()
        try:
            return [started.stderr] if started.returncode else _wrong_with(podman, name)
        finally:
            print(_run(*podman, "logs", name).stderr)
            _run(*podman, "rm", "-f", name)


def _wrong_with(podman: Sequence[str | Path], name: str) -> list[str]:
    job = _run(*podman, "exec", name, "packhorse", "enqueue", "add", "1", "2", "--wait")
    health = _run(*podman, "healthcheck", "run", name)
    user = _run(*podman, "exec", name, "id", "-u")
    stopped = _run(*podman, "stop", "-t", "60", name)
    left = _run(*podman, "inspect", name, "--format", "{{.State.ExitCode}}")
    found = {
        "the job": (job.stdout.strip(), "3"),
        "the health check": (str(health.returncode), "0"),
        "the user": (user.stdout.strip(), "10001"),
        "stopping": (str(stopped.returncode), "0"),
        "the exit code": (left.stdout.strip(), "0"),
    }
    print(", ".join(f"{what}: {got}" for what, (got, _) in found.items()))
    return [
        f"{what} is {got!r} and not {wanted!r}"
        for what, (got, wanted) in found.items()
        if got != wanted
    ]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
