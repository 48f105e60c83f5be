# SPDX-License-Identifier: MIT
"""Combine the topics into a suite for one store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from packhorse.testing.conformance.ageing import TestAgeing
from packhorse.testing.conformance.attaching import TestAttaching, TestDelivering
from packhorse.testing.conformance.attachments_machine import TestAttachmentsMachine
from packhorse.testing.conformance.byte_bounds import TestByteBounds, TestDroppingBytes
from packhorse.testing.conformance.cancelling import TestCancelling, TestProgress
from packhorse.testing.conformance.claiming import TestClaiming, TestSuspects, TestTenantsOfClaims
from packhorse.testing.conformance.concurrency import TestConcurrency
from packhorse.testing.conformance.contention import TestContention
from packhorse.testing.conformance.deleting import TestDeleting
from packhorse.testing.conformance.depths import TestDropping, TestFullQueues
from packhorse.testing.conformance.exchanging import TestExchanging
from packhorse.testing.conformance.explaining import TestExplaining
from packhorse.testing.conformance.fairness import TestFairness
from packhorse.testing.conformance.fencing import TestFencing
from packhorse.testing.conformance.folding import TestFolding, TestJournalGroups, TestKeptMembers
from packhorse.testing.conformance.harness import HarnessFactory
from packhorse.testing.conformance.histories import TestHistories
from packhorse.testing.conformance.idempotency import TestIdempotency
from packhorse.testing.conformance.inspection import TestCounts, TestJobs, TestOutlook, TestSearch
from packhorse.testing.conformance.journal_machine import TestJournalMachine
from packhorse.testing.conformance.journaling import TestJournalLines, TestJournalPaths
from packhorse.testing.conformance.leases import TestLeases, TestRenewalOfWhatIsHeld, TestWorkers
from packhorse.testing.conformance.levels import TestLevelsOfClaims
from packhorse.testing.conformance.limited import TestLimited, TestOpenedGates
from packhorse.testing.conformance.limits_machine import TestLimitsMachine
from packhorse.testing.conformance.lines import TestLines
from packhorse.testing.conformance.machine import TestMachine
from packhorse.testing.conformance.members import TestFinishedMembers
from packhorse.testing.conformance.ordering import TestOrdering
from packhorse.testing.conformance.overriding import TestOverriding, TestTaskLimits
from packhorse.testing.conformance.pausing import TestClosing, TestPausing
from packhorse.testing.conformance.queues import TestDepth, TestQueues
from packhorse.testing.conformance.races import TestRaces
from packhorse.testing.conformance.rates import TestRates
from packhorse.testing.conformance.record_pages import TestRecordJobs, TestRecordPages
from packhorse.testing.conformance.records import TestRecords
from packhorse.testing.conformance.records_machine import TestRecordsMachine
from packhorse.testing.conformance.redriving import TestRedriving
from packhorse.testing.conformance.rescuing import TestOrphans, TestRescuing
from packhorse.testing.conformance.retention import TestGhosts, TestPruning
from packhorse.testing.conformance.runners import TestRunners
from packhorse.testing.conformance.searching import TestBoundedSearch
from packhorse.testing.conformance.settling import TestSettling
from packhorse.testing.conformance.submitting import TestSubmitting
from packhorse.testing.conformance.transferring import TestTransferring
from packhorse.testing.conformance.trial import RUNNERS, RunnerName, Trial, Trials
from packhorse.testing.conformance.uniqueness import TestKeepLatest, TestUniqueness
from packhorse.testing.conformance.upkeep import TestExpiring, TestParking, TestPromoting
from packhorse.testing.conformance.waiting import TestWaiting
from packhorse.testing.conformance.wakeups import TestWakeups
from packhorse.testing.conformance.weights import TestWeights

#: Every topic, in the order of a job's life.
TOPICS: Final[tuple[type, ...]] = (
    TestSubmitting,
    TestClaiming,
    TestSuspects,
    TestLevelsOfClaims,
    TestTenantsOfClaims,
    TestOrdering,
    TestSettling,
    TestHistories,
    TestFencing,
    TestCancelling,
    TestProgress,
    TestRedriving,
    TestLeases,
    TestRenewalOfWhatIsHeld,
    TestWorkers,
    TestOrphans,
    TestRescuing,
    TestDepth,
    TestQueues,
    TestConcurrency,
    TestRates,
    TestWeights,
    TestFairness,
    TestAgeing,
    TestLines,
    TestFullQueues,
    TestDropping,
    TestByteBounds,
    TestDroppingBytes,
    TestIdempotency,
    TestUniqueness,
    TestKeepLatest,
    TestPausing,
    TestClosing,
    TestOverriding,
    TestTaskLimits,
    TestLimited,
    TestOpenedGates,
    TestExpiring,
    TestParking,
    TestPromoting,
    TestDeleting,
    TestPruning,
    TestGhosts,
    TestCounts,
    TestJobs,
    TestOutlook,
    TestSearch,
    TestBoundedSearch,
    TestExplaining,
    TestTransferring,
    TestExchanging,
    TestAttaching,
    TestDelivering,
    TestWaiting,
    TestRecords,
    TestRecordPages,
    TestRecordJobs,
    TestJournalPaths,
    TestJournalLines,
    TestJournalGroups,
    TestFolding,
    TestKeptMembers,
    TestFinishedMembers,
    TestWakeups,
    TestRunners,
    TestRaces,
    TestContention,
    TestMachine,
    TestLimitsMachine,
    TestAttachmentsMachine,
    TestRecordsMachine,
    TestJournalMachine,
)


def suite(make: HarnessFactory) -> type:
    """Return a test class with every topic; assign it to a name that starts with `Test`."""

    class StoreSuite:
        """Every promise of a store, checked on one."""

        @pytest.fixture
        def trials(self, tmp_path: Path) -> Trials:
            """Empty stores, as many as the test opens."""
            return Trials(make, tmp_path)

        @pytest.fixture(params=RUNNERS)
        def runner(self, request: pytest.FixtureRequest) -> RunnerName:
            """The runner under test: every test runs once with each."""
            runner: RunnerName = request.param
            return runner

        @pytest.fixture
        def trial(self, runner: RunnerName, trials: Trials) -> Iterator[Trial]:
            """One empty store, once for each of its runners."""
            with trials.fresh(runner) as fresh:
                yield fresh

    for topic in TOPICS:
        setattr(StoreSuite, topic.__name__, topic)
    return StoreSuite
