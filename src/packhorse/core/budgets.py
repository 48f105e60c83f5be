# SPDX-License-Identifier: MIT
"""What a job may spend over all its attempts, and what it has spent: kept with the job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from packhorse.core.job import NUMBER_MAX
from packhorse.core.sealing import is_sealed
from packhorse.errors import ConfigError

#: The name that it is kept under.
SPENT: Final = "spent"


class Budget(msgspec.Struct, frozen=True):
    """Tokens of a job, over all its attempts."""

    spent: int
    limit: int | None  #: `max_tokens` of the contract; None: there is none

    @property
    def remaining(self) -> int | None:
        """How many are left; None: there is no limit."""
        return None if self.limit is None else max(0, self.limit - self.spent)

    @property
    def exceeded(self) -> bool:
        """Whether more were spent than there were."""
        return self.limit is not None and self.spent > self.limit


class _Spent(msgspec.Struct, frozen=True):
    tokens: int


_DECODER: Final = msgspec.json.Decoder(_Spent)


def tokens_spent(values: Mapping[str, bytes]) -> int:
    """The tokens a job has spent, from what is kept with it."""
    kept = values.get(SPENT)
    return 0 if kept is None or is_sealed(kept) else _DECODER.decode(kept).tokens


def encode_spent(tokens: int) -> dict[str, bytes]:
    """What was spent, as it is kept."""
    return {SPENT: msgspec.json.encode(_Spent(min(tokens, NUMBER_MAX)))}


def checked_tokens(tokens: object) -> int:
    """A number of tokens that can be spent."""
    if isinstance(tokens, bool) or not isinstance(tokens, int) or not 0 <= tokens <= NUMBER_MAX:
        raise ConfigError(f"ctx.spend(): tokens is {tokens!r}; give a whole number from 0")
    return tokens
