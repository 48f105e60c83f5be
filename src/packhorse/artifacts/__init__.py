# SPDX-License-Identifier: MIT
"""Artifacts: large values beside the store, of which jobs keep references.

places   the contract of a place, the one in memory, and which URL means which
folder   a folder of files; `s3` a bucket
verbs    `ctx.artifacts`, what `job.artifacts()` returns, and results that became artifacts
"""

from __future__ import annotations

from packhorse.artifacts.locations import MemoryPlace, Place, PlaceSource, open_place
from packhorse.artifacts.verbs import (
    RESULT_ARTIFACT_BYTES_MAX,
    Artifact,
    Artifacts,
    artifacts_of,
    is_reference,
    moved_result,
    result_artifact,
    with_artifacts,
)

__all__ = [
    "RESULT_ARTIFACT_BYTES_MAX",
    "Artifact",
    "Artifacts",
    "MemoryPlace",
    "Place",
    "PlaceSource",
    "artifacts_of",
    "is_reference",
    "moved_result",
    "open_place",
    "result_artifact",
    "with_artifacts",
]
