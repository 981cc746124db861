"""The judging half of perf tests: their figures are held against the baselines of this hardware."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from pytest_gpuperf.baselines.provenance import today
from pytest_gpuperf.baselines.schema import BaselineError, Baselines
from pytest_gpuperf.figures.metric import Metric
from pytest_gpuperf.hardware.machine import Machine
from pytest_gpuperf.verdicts.controls import most
from pytest_gpuperf.verdicts.excuse import excused
from pytest_gpuperf.verdicts.judge import Judge
from pytest_gpuperf.verdicts.outcome import Outcome
from pytest_gpuperf.verdicts.rule import Policy
from pytest_gpuperf.verdicts.verdict import Verdict


class Judging:
    """Judges each figure when its test's body has ended, and suspects once more after fresh launches."""

    def __init__(self, where: str, machine: Machine, policy: Policy) -> None:
        """Nothing is read yet.

        Args:
            where: the place of this hardware's baselines, for messages.
            machine: of the run.
            policy: what a verdict may get wrong, and which loss it must find.
        """
        self._where = where
        self._machine = machine
        self._policy = policy
        self._judge: Judge | None = None
        self._world_sizes: dict[str, int] = {}
        """CurrentRanks sizes of the tests that the control workload can explain."""

    def load(self, baselines: Baselines | None, tests: Iterable[str]) -> None:
        """Takes the baselines, and the node ids of the perf tests that are going to run.

        Raises:
            BaselineError: the baselines contradict the run's policy.
        """
        key, gpus = self._machine.key, self._machine.identity
        try:
            self._judge = Judge(key, baselines, tests, self._policy, gpus=gpus, today=today())
        except ValueError as error:
            cure = "mend it there, or the ini keys gpuperf_tolerance and gpuperf_min_effect"
            raise BaselineError(self._where, str(error), cure) from error

    @property
    def judge(self) -> Judge:
        """The judge of this run; there is one once the baselines are read."""
        assert self._judge is not None
        return self._judge

    @property
    def shift(self) -> float | None:
        """By how much all figures moved alike, as a fraction, worse above 0; None if they did not."""
        return None if self._judge is None else self._judge.shift

    @property
    def moved(self) -> Mapping[str, float]:
        """What of the control workload moved, by how much, as a fraction, slower above 0."""
        return {} if self._judge is None else self._judge.moved

    def runs_on(self, test: str, world_size: int) -> None:
        """Takes note that a test runs on so many ranks, in the surroundings of the control workload."""
        self._world_sizes[test] = world_size

    def conclude(self, test: str, body_hash: str, metrics: Mapping[str, Metric]) -> list[Verdict]:
        """The verdicts on the figures of one test's first launch."""
        verdicts = [self.judge.screen(test, name, metric, body_hash) for name, metric in metrics.items()]
        return [self._excused(verdict) for verdict in verdicts]

    def unchecked(self, test: str, body_hash: str, metrics: Mapping[str, Metric]) -> list[str]:
        """The metrics of a test that have a baseline, of the body that it has now, and that it did not check."""
        entry = self.judge.entry(test)
        if entry is None or entry.body_hash != body_hash:
            return []
        return [name for name in entry.metrics if name not in metrics]

    def confirmed(self, suspect: Verdict, figures: Sequence[Metric]) -> Verdict:
        """What fresh launches make of a suspect; ``figures`` is empty if no number of them would decide."""
        verdict = self._excused(self.judge.confirm(suspect, figures))
        if verdict.outcome is not Outcome.REGRESSED:
            return verdict
        world_size = self._world_sizes.get(verdict.test)
        if world_size is None:
            return verdict
        known = verdict.expected
        center = known.center if known is not None and known.holds(today()) else None
        at_limit = most([figure.power_capped for figure in (suspect.metric, *figures)])
        return self.judge.explained(verdict, world_size, at_limit=at_limit, center=center) or verdict

    def _excused(self, verdict: Verdict) -> Verdict:
        return excused(verdict, self.judge.entry(verdict.test), today())
