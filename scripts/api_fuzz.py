# SPDX-License-Identifier: MIT
"""Let schemathesis look for requests that the served API answers otherwise than its document says.

    python -m scripts.api_fuzz [--examples 30] [--seed 1] [more for schemathesis]

The API is `packhorse dashboard` on a day of the example shop, with a worker; the document is the
one it serves. Asked are all routes but the streams, which do not end, with what is valid and what
is not, with the token of an admin, with a wrong one, and with none.
"""

from __future__ import annotations

import argparse
import logging
import os
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Final

import msgspec

from packhorse import Packhorse
from packhorse.client.tokens import Tokens
from scripts.api_fuzz_app import APP, more
from scripts.browser_shop import begun, filled, process, served

_CHECKS: Final = (
    *("not_a_server_error", "response_schema_conformance", "status_code_conformance"),
    *("content_type_conformance", "response_headers_conformance", "ignored_auth"),
    *("positive_data_acceptance", "negative_data_rejection", "unsupported_method"),
    "allow_header_conformance",
)
_SCHEMATHESIS: Final = Path(sys.executable).with_name("schemathesis")
_JOBS: Final = ("jobs", "processing", "timeout", "failed", "cancelled", "waits")
_NAMES: Final = {
    "batches": ["prices"],
    "queues": ["mail", "news", "default"],
    "schedules": ["nightly"],
    "alerts": ["behind"],
    "topics": ["paid"],
    "tasks": ["add", "send_mail"],
    "scale": ["mail", "news"],
}


def main(arguments: list[str]) -> int:
    """Look; 0 if nothing was found."""
    parser = argparse.ArgumentParser(description="Fuzz the web API.")
    parser.add_argument("--examples", type=int, default=30, help="at most, for each route")
    parser.add_argument("--seed", type=int, default=1)
    options, others = parser.parse_known_args(arguments)
    with tempfile.TemporaryDirectory(prefix="packhorse-fuzz-") as place:
        url, folder = f"sqlite:///{place}/jobs.db", Path(place)
        logging.disable(logging.CRITICAL)  # of the past of the shop
        ids = filled(url)
        ids["waits"] = more(url)
        with (
            served(APP, "--proxy", "127.0.0.1", url=url, folder=folder) as address,
            process("worker", APP, url=url, log=folder / "worker.log"),
            begun(url, ids) as worker,
        ):
            known = {
                **_NAMES,
                "jobs": [ids[word] for word in _JOBS],
                "workflows": [ids["workflows"], "order-17"],
                "operations": [ids["operations"]],
                "workers": [worker],
            }
            status = subprocess.run(  # noqa: S603 - our own
                [
                    *(str(_SCHEMATHESIS), "run", f"{address}/api/v1/openapi.json"),
                    *("--header", f"Authorization: Bearer {_token(url)}"),
                    *("--exclude-path-regex", "events$", "--checks", ",".join(_CHECKS)),
                    *("--max-examples", str(options.examples), "--seed", str(options.seed)),
                    *("--phases", "examples,coverage,fuzzing", "--generation-database", "none"),
                    *("--request-timeout", "30", "--continue-on-failure", "--no-color", *others),
                ],
                cwd=place,
                env={
                    **os.environ,
                    "PACKHORSE_FUZZ_KNOWN": msgspec.json.encode(known).decode(),
                    "PYTHONPATH": str(Path(__file__).resolve().parent.parent),
                    "SCHEMATHESIS_HOOKS": "scripts.api_fuzz_hooks",
                },
                check=False,
            ).returncode
        print((folder / "web.log").read_text(encoding="utf-8"))
    return status


def _token(url: str) -> str:
    with closing(Packhorse(url)) as app:
        return Tokens(app.store).create("fuzz", scopes=["admin"]).text


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
