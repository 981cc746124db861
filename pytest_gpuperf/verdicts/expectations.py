"""What references or a model of the hardware expect of a metric, and what it comes to without a record."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from pytest_gpuperf.baselines.differences import sort_by_likelihood
from pytest_gpuperf.figures.metric import Metric
from pytest_gpuperf.verdicts.opinion import Opinion, Saying
from pytest_gpuperf.verdicts.outcome import Outcome, Reason
from pytest_gpuperf.verdicts.shares import apply_request, merge_launches
from pytest_gpuperf.verdicts.verdict import Verdict

CONFIRMING = 2
"""Launches beyond the first one that a metric without a record must be below in, by their median."""

MOST_BY_CHANCE = 12
"""Tests that chance may make suspect at once. Of 268 metrics with a chance of 1 in 1000 each, that is never seen."""


class Expects(Protocol):
    """Says what is expected of a metric that has no record."""

    def __call__(self, test: str, metric_name: str, metric: Metric, body_hash: str) -> Opinion:
        """Return what references or a model of the hardware expect."""
        ...


class Expectations:
    """Judges the metrics of one run by what is expected of them."""

    def __init__(self, expects: Expects | None, now: Callable[[], Mapping[str, str]], *, strict: bool) -> None:
        """Has judged nothing yet.

        Args:
            expects: says what is expected of a metric; None: nothing.
            now: returns versions and variables of the run.
            strict: whether a metric without a record fails even if it is as expected.
        """
        self._expects = expects
        self._now = now
        self._strict = strict
        self._bodies: dict[str, str] = {}
        """Hashes of the tests of which something is expected."""
        self._below: set[str] = set()
        """Tests with metrics below what is expected of them."""

    def note_body(self, test: str, body_hash: str) -> None:
        """Keeps the hash of a test's body, which references go by."""
        self._bodies[test] = body_hash

    def opinion(self, verdict: Verdict) -> Opinion | None:
        """Return what is expected of a metric of a test whose body was noted; None if nothing expects anything."""
        if self._expects is None:
            return None
        return self._expects(verdict.test, verdict.metric_name, verdict.metric, self._bodies[verdict.test])

    def judge(self, verdict: Verdict) -> Verdict:
        """The verdict on a metric without a record; one that is below waits for more launches.

        References or a model have the only say, unless records are demanded.
        """
        said = self.opinion(verdict)
        missing = replace(verdict, outcome=Outcome.MISSING, reason=Reason.NO_RECORD, opinion=said)
        if said is None or self._strict:
            return missing
        if said.saying is Saying.BELOW:
            self._below.add(verdict.test)
            return missing.leave_undecided(Reason.SUSPECT)
        reasons = {Saying.PLAUSIBLE: Reason.PLAUSIBLE, Saying.NONE: Reason.NOT_JUDGED}
        return replace(missing, reason=reasons.get(said.saying, Reason.ABOVE_MODEL))

    def confirm(self, suspect: Verdict, present: Sequence[Metric]) -> Verdict | None:
        """A suspect without a record, by the median of its launches; None if one more launch has to tell.

        Many tests that are below at once are no chance, so their first launch decides.

        Args:
            suspect: the verdict on the first launch.
            present: what each launch after that measured.
        """
        if len(present) < CONFIRMING and len(self._below) <= MOST_BY_CHANCE:
            return None
        metric = merge_launches([suspect.metric, *present]) if present else suspect.metric
        verdict = replace(suspect, metric=metric, launches=len(present) + 1, outcome=Outcome.MISSING)
        said = self.opinion(verdict)
        assert said is not None
        if said.saying is Saying.PLAUSIBLE:
            return apply_request(replace(verdict, reason=Reason.PLAUSIBLE, opinion=said))
        variables = suspect.opinion.variables if suspect.opinion is not None else ()
        return apply_request(
            replace(verdict, reason=Reason.BELOW, opinion=replace(said, variables=variables)),
        )

    def add_variables(self, verdict: Verdict) -> Verdict:
        """Adds the variables that are set to a metric that is below: it has no record from which they could differ."""
        said = verdict.opinion
        if said is None or said.saying is not Saying.BELOW:
            return verdict
        # NVIDIA's container images set the version, and NCCL does not read it.
        is_set = {name: ("", value) for name, value in self._now().items() if name.isupper() and name != "NCCL_VERSION"}
        variables = tuple(f"{name}={value}" for name, (_, value) in sort_by_likelihood(is_set))
        return replace(verdict, opinion=replace(said, variables=variables))
