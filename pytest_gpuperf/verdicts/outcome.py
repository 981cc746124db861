"""What a figure can come to, and what each of these means for its test: one table."""

from enum import Enum, auto
from typing import Self


class Effect(Enum):
    """What a figure makes of its test."""

    FAILS = auto()
    SKIPS = auto()
    """The test is reported as skipped: it must not hide as a pass."""
    PASSES = auto()


class Outcome(Enum):
    """What a figure came to, worst first: its word in reports and files, its effect, and what it means.

    The order of the members is the order of reports. A member without an effect cannot be defined.
    """

    INVALID = "invalid", Effect.FAILS, "The machine was not fit for the measurement."
    BROKEN = "broken", Effect.FAILS, "The figure is above the physical limit: the measurement is wrong."
    REGRESSED = "regressed", Effect.FAILS, "The figure is worse than its baseline, and fresh launches confirmed it."
    MISSED = "missed", Effect.FAILS, "The figure is surely below what the test asks for, whatever the baseline."
    MISSING = "missing", Effect.FAILS, "The figure has no baseline."
    STALE = "stale", Effect.FAILS, "The baseline is of another test body, unit, direction or clock."
    SUSPECT = "suspect", Effect.SKIPS, "The figure was worse in its first launch, and no fresh launch decided."
    SHIFTED = "shifted", Effect.SKIPS, "The figure moved no more than most figures or the control workload did."
    UNDECIDED = "undecided", Effect.SKIPS, "The figure's spread is so wide that a loss could hide in it."
    DOUBTFUL = "doubtful", Effect.SKIPS, "The figure is perhaps below what the test asks for."
    EXPECTED = "expected", Effect.PASSES, "The figure is regressed, as its baseline expects until a date."
    IMPROVED = "improved", Effect.PASSES, "The figure is better than its baseline."
    SAME = "same", Effect.PASSES, "The figure is as its baseline says."
    RECORDED = "recorded", Effect.PASSES, "The figure became a baseline."
    UNJUDGED = "unjudged", Effect.PASSES, "The figure is only shown."

    effect: Effect
    meaning: str

    def __new__(cls, word: str, effect: Effect, meaning: str) -> Self:
        """Makes a member whose value is its word alone, which files hold."""
        member = object.__new__(cls)
        member._value_ = word
        member.effect = effect
        member.meaning = meaning
        return member

    @classmethod
    def of(cls, word: str) -> Self:
        """The outcome of this word."""
        return next(outcome for outcome in cls if outcome.value == word)

    @property
    def fails(self) -> bool:
        """Whether a test with such a figure fails."""
        return self.effect is Effect.FAILS

    @property
    def skips(self) -> bool:
        """Whether a test with such a figure, and none that fails, is reported as skipped."""
        return self.effect is Effect.SKIPS

    @property
    def severity(self) -> int:
        """The place in the order of reports; 0 is the worst."""
        return list(Outcome).index(self)
