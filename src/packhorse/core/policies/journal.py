# SPDX-License-Identifier: MIT
"""Groups of jobs, and the lines that tell when their members end: the words all stores share."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from packhorse.core.clock import SECOND_US
from packhorse.core.job import JobOptions, JobStatus, Member
from packhorse.core.policies.records import Record, RecordId, check_id
from packhorse.core.policies.retention import DAY_US
from packhorse.errors import ConfigError

LINES_MAX: Final = 1_000  #: folded in one call
CARRIED_LINES_MAX: Final = 100_000  #: of one group, from another store
#: The kind of groups whose members wait for each other.
WORKFLOW_KIND: Final = "workflow"
#: How long after its end a member is kept at most for the sake of its group.
MEMBER_LIFE_US_MAX: Final = 30 * DAY_US
#: After so long it is looked again whether a member's group is still there.
KEPT_US: Final = 3600 * SECOND_US

_RUN: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
#: Before the run: a run has none, so that the last one parts it from the key.
_BEFORE_RUN: Final = "#"


class Group(NamedTuple):
    """Jobs that are looked at together: a batch, or the nodes of a workflow."""

    kind: str
    tenant: str
    key: str
    run: str  #: the same key may run again, as another group

    @property
    def record(self) -> RecordId:
        """The id of the group's own record. While that is there, members are kept."""
        return RecordId(self.kind, self.tenant, f"{self.key}{_BEFORE_RUN}{self.run}")

    @property
    def text(self) -> str:
        """The group as one text: that of its record."""
        return self.record.text

    @classmethod
    def of(cls, text: str) -> Group:
        """The group from its text."""
        kind, tenant, name = RecordId.of(text)
        key, _, run = name.rpartition(_BEFORE_RUN)
        return cls(kind, tenant, key, run)

    def member(self, node: str = "") -> Member:
        """What the options of a job say that belongs to this group, as `node`."""
        check_id(self.record)
        if not _RUN.fullmatch(self.run):
            raise ConfigError(f"{self.run!r} is no run of a group: use A-Z, a-z, 0-9, _, . and -")
        check_id(RecordId(self.kind, self.tenant, node))
        return Member(self.text, node)


class JournalLine(msgspec.Struct, frozen=True):
    """A member of a group has become final, or is final no more."""

    id: int
    group: Group
    job_id: str
    node: str
    status: JobStatus  #: what the job has become
    was: JobStatus
    #: What the end was about; of a job that is final no more, what the end was that is taken back.
    items: int = 0
    failed: int = 0


def member_of(options: JobOptions | None) -> Member | None:
    """What a job is a member of, if it is one."""
    return None if options is None else options.member


def is_kept(finished_us: int, now_us: int) -> bool:
    """Whether a member whose group is still there is kept, though its lifetime has passed."""
    return now_us < finished_us + MEMBER_LIFE_US_MAX


def is_spared(group: Record | None) -> bool:
    """Whether a finished member may not be deleted: the record of a group that ended expires."""
    return group is not None and group.expires_us is None


def ran_once(status: JobStatus, group: str | None) -> bool:
    """Whether a job has completed and does not run again: nodes behind it have its result."""
    is_node = bool(group) and Group.of(group or "").kind == WORKFLOW_KIND
    return is_node and status is JobStatus.COMPLETED


def check_lines(line_ids: Sequence[int], carried: Sequence[JournalLine]) -> None:
    """Refuse to fold what no store folds in one call."""
    for number, most in ((len(line_ids), LINES_MAX), (len(carried), CARRIED_LINES_MAX)):
        if number > most:
            raise ConfigError(
                f"{number} lines of a journal in one call; at most {most} are taken: "
                "fold them in parts"
            )
