"""What a metric can come to, and what each of these means for its test: one table."""

from enum import Enum, auto
from typing import Self


class Effect(Enum):
    """What a metric makes of its test."""

    FAILS = auto()
    SKIPS = auto()
    """The test is reported as skipped: it must not hide as a pass."""
    PASSES = auto()


class Outcome(Enum):
    """What a metric came to, worst first: its word in reports and files, its effect, and what it means.

    The order of the members is the order of reports. A member without an effect cannot be defined.
    """

    INVALID = "invalid", Effect.FAILS, "The measurement is worth nothing."
    REGRESSED = "regressed", Effect.FAILS, "The code is slower: a race accuses it, or, if none decides, the baseline."
    MISSED = "missed", Effect.FAILS, "The metric is surely below what the test asks for, whatever the baseline says."
    MISSING = "missing", Effect.FAILS, "The metric has no baseline that it could be held against."
    ENVIRONMENT = (
        "environment",
        Effect.SKIPS,
        "The baseline's code is slower today, and the present code no slower.",
    )
    UNDECIDED = "undecided", Effect.SKIPS, "The metric was worse, and nothing decided why."
    EXPECTED = "expected", Effect.PASSES, "The metric is worse, as its baseline expects until a date."
    IMPROVED = "improved", Effect.PASSES, "The metric is better than its baseline."
    SAME = "same", Effect.PASSES, "The metric is as its baseline says, or a race did not reproduce its loss."
    RECORDED = "recorded", Effect.PASSES, "The metric became a baseline."
    UNJUDGED = "unjudged", Effect.PASSES, "The metric is only shown."

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
        """Whether a test with such a metric fails."""
        return self.effect is Effect.FAILS

    @property
    def skips(self) -> bool:
        """Whether a test with such a metric, and none that fails, is reported as skipped."""
        return self.effect is Effect.SKIPS

    @property
    def severity(self) -> int:
        """The place in the order of reports; 0 is the worst."""
        return list(Outcome).index(self)


class Reason(Enum):
    """Why an outcome is what it is, if there is more than one way to it."""

    UNFIT = "unfit"
    """Invalid: the machine was not fit for the measurement."""
    ABOVE_LIMIT = "above the limit"
    """Invalid: the metric is better than physics allows."""
    NO_RECORD = "no baseline"
    """Missing: nothing is recorded of it on this hardware."""
    PLAUSIBLE = "plausible"
    """Missing: nothing is recorded of it, and it is as references or a model of the hardware expect. It passes."""
    BELOW = "below"
    """Missing: nothing is recorded of it, and it is worse than references or a model expect, in three launches."""
    ABOVE_MODEL = "above the model"
    """Missing: nothing is recorded of it, and it is better than a model of the hardware allows."""
    NOT_JUDGED = "not judged"
    """Missing: nothing is recorded of it, and nothing is expected. It passes, and is shown."""
    STALE = "stale"
    """Missing: the record is of another test body, unit, direction or clock."""
    SUSPECT = "suspect"
    """Undecided: worse in the first launch, and no later launch decided."""
    BUDGET = "budget"
    """Undecided: the race had no time left."""
    OPEN = "open"
    """Undecided: launches differ so much that they did not decide."""
    CANNOT_RACE = "cannot race"
    """Undecided: the other code does not run here, and the record does not know these GPUs."""
    NOT_RACED = "not raced"
    """Regressed by the record alone: the other code does not run here, and the record knows these GPUs."""
    GROSS = "gross"
    """Regressed, though nothing else decided: the loss is beyond what machines of one kind differ by, on GPUs that the
    record lacks, or the metric is below what a model of the hardware allows."""
    EXACT = "exact"
    """Regressed or improved: every launch of the record counted the same, so one launch shows a change."""
    ELSEWHERE = "elsewhere"
    """Environment: the record does not know these GPUs, and the metric is at more than half its speed. The run passes,
    unless asked otherwise."""
    NOISY = "noisy"
    """Unjudged: launches or machines differ so much that a loss of a tenth would not be seen. Only a metric at half its
    speed would be suspect."""
    ASKED = "asked"
    """Undecided: the metric may be below what the test asks for."""
    CLEARED = "cleared"
    """Same: more launches cleared it against the record."""
    NOT_REPRODUCED = "not reproduced"
    """Same: a race cleared it."""
    OWN_WORDS = "own words"
    """Any outcome: a feature judged, and the verdict has its words, which are all that reports say of the metric."""
