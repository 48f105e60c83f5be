# SPDX-License-Identifier: MIT
"""What a job asks a person, and what it was answered: kept with the job, and read from that.

The question is a value under the job's fence. Answers are signals from outside, each for a question
by its number, so that two people who answer one question do not answer the next one too.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

import msgspec

from packhorse.core.clock import to_datetime
from packhorse.core.job import AttemptError
from packhorse.core.policies.attachments import Attachments
from packhorse.core.sealing import is_sealed
from packhorse.core.text import storable
from packhorse.errors import ConfigError

#: Signals whose names begin so are not for users to send.
RESERVED: Final = "packhorse:"
APPROVED: Final = "packhorse:approved"
DECLINED: Final = "packhorse:declined"
#: The name that the question is kept under.
QUESTION: Final = "question"
#: How long a name and a note may be.
_BY_LENGTH_MAX: Final = 200
_NOTE_LENGTH_MAX: Final = 2_000


class Question(msgspec.Struct, frozen=True):
    """What a job waits to be answered."""

    number: int  #: from 1
    error: AttemptError  #: what the handler said, as its attempt is shown

    def encoded(self) -> dict[str, bytes]:
        """As it is kept."""
        return {QUESTION: msgspec.json.encode(self)}


class Answer(msgspec.Struct, frozen=True):
    """What a person said to a question, as it is kept."""

    question: int
    by: str
    note: str
    at_us: int


_QUESTIONS: Final = msgspec.json.Decoder(Question)
_ANSWERS: Final = msgspec.json.Decoder(Answer)


class Approval(msgspec.Struct, frozen=True):
    """Who let a job go on, or did not, when, and what was said."""

    by: str
    note: str
    at: datetime
    approved: bool = True


class Consent:
    """What was asked and answered so far."""

    def __init__(self, kept: Attachments) -> None:
        asked = kept.values.get(QUESTION)
        if asked is not None and is_sealed(asked):  # by a key that this reader does not have
            asked = None
        self.question = None if asked is None else _QUESTIONS.decode(asked)
        self._approved = _answers(kept.signals.get(APPROVED, ()))
        self._declined = _answers(kept.signals.get(DECLINED, ()))

    @property
    def number(self) -> int:
        """Of the question that was asked last; an answer that comes first is for the first."""
        return 1 if self.question is None else self.question.number

    @property
    def answer(self) -> Approval | None:
        """The answer to that question. Of two that crossed, the one that declines counts."""
        for answers, approved in ((self._declined, False), (self._approved, True)):
            for each in answers:
                if each.question == self.number:
                    return _shown(each, approved=approved)
        return None

    @property
    def approval(self) -> Approval | None:
        """The approval under which the handler runs."""
        answer = self.answer
        return answer if answer is not None and answer.approved else None

    @property
    def waits(self) -> bool:
        """Whether a question has no answer yet."""
        return self.question is not None and self.answer is None

    @property
    def refusal(self) -> str | None:
        """Who ended the job, and why; an answer before any question ends nothing yet."""
        answer = None if self.question is None else self.answer
        if answer is None or answer.approved:
            return None
        note = f": {answer.note}" if answer.note else ""
        return f"declined by {answer.by} at {answer.at:%Y-%m-%dT%H:%M:%SZ}{note}"

    @property
    def given(self) -> tuple[Approval, ...]:
        """All answers, in the order of their giving."""
        every = [(each, True) for each in self._approved]
        every += [(each, False) for each in self._declined]
        every.sort(key=lambda one: one[0].at_us)
        return tuple(_shown(each, approved=approved) for each, approved in every)

    def next_question(self, error: AttemptError) -> Question:
        """What is asked after what was asked before."""
        return Question(1 if self.question is None else self.question.number + 1, error)


def answer_of(question: int, by: object, note: object, at_us: int) -> bytes:
    """An answer as it is kept; who gives it must be said."""
    if not isinstance(by, str) or not by.strip() or len(by) > _BY_LENGTH_MAX:
        raise ConfigError(
            f"by is {by!r}: say who decides, in at most {_BY_LENGTH_MAX} characters, such as a name"
        )
    if not isinstance(note, str) or len(note) > _NOTE_LENGTH_MAX:
        raise ConfigError(f"note is no text of at most {_NOTE_LENGTH_MAX} characters")
    return msgspec.json.encode(Answer(question, storable(by), storable(note), at_us))


def _answers(signals: Sequence[bytes]) -> list[Answer]:
    return [_ANSWERS.decode(each) for each in signals if not is_sealed(each)]


def _shown(answer: Answer, *, approved: bool) -> Approval:
    return Approval(answer.by, answer.note, to_datetime(answer.at_us), approved)
