# SPDX-License-Identifier: MIT
"""Count the tokens that a job spends over all its attempts, stored before the handler goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable

from packhorse.core.budgets import Budget, checked_tokens, encode_spent, tokens_spent
from packhorse.core.policies.attachments import Attachments
from packhorse.errors import BudgetExceeded


class Spending:
    """The budget of one attempt's job."""

    def __init__(
        self, task: str, limit: int | None, write: Callable[[dict[str, bytes]], None]
    ) -> None:
        self._task = task
        self._limit = limit
        self._write = write
        self._spent = 0
        self._turn = threading.Lock()

    @property
    def budget(self) -> Budget:
        """What was spent, and what may be."""
        return Budget(self._spent, self._limit)

    def begin(self, kept: Attachments) -> None:
        """Start from what earlier attempts have spent."""
        self._spent = tokens_spent(kept.values)
        self._check()

    def spend(self, tokens: object) -> None:
        """Add to the sum and store it; raise `BudgetExceeded` beyond the limit.

        Tokens beyond the limit were spent, so they count too.
        """
        number = checked_tokens(tokens)
        with self._turn:  # the sum that is written last must be the highest
            self._spent += number
            self._write(encode_spent(self._spent))
        self._check()

    def exceeded(self) -> BudgetExceeded:
        """Return the error of a job that has spent too much."""
        return BudgetExceeded(task=self._task, spent=self._spent, limit=self._limit or 0)

    def _check(self) -> None:
        if self.budget.exceeded:
            raise self.exceeded()
