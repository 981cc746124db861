"""The judging half of perf tests: their figures are held against the baselines of this hardware."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from pytest_gpuperf.baselines.differences import likeliest_first
from pytest_gpuperf.baselines.provenance import today
from pytest_gpuperf.baselines.schema import Baselines
from pytest_gpuperf.figures.metric import Metric
from pytest_gpuperf.hardware.machine import Machine
from pytest_gpuperf.model.expecting import opinion
from pytest_gpuperf.model.hardware import Rates
from pytest_gpuperf.model.opinion import Opinion, Saying
from pytest_gpuperf.references.expecting import Expecting
from pytest_gpuperf.references.shelf import Shelf
from pytest_gpuperf.verdicts.judge import Arms, Judge
from pytest_gpuperf.verdicts.moved import Moved
from pytest_gpuperf.verdicts.rule import Policy
from pytest_gpuperf.verdicts.verdict import Verdict


class Judging:
    """Judges each figure when its test's body has ended, and suspects once more after other launches."""

    def __init__(
        self, machine: Machine, policy: Policy, software: Callable[[], Mapping[str, str]], *, strict: bool = True
    ) -> None:
        """Nothing is read yet.

        Args:
            machine: of the run.
            policy: what a verdict may get wrong, and which loss it must find.
            software: tells the versions and variables of the run.
            strict: whether a figure without a record fails, whatever a model of the hardware says.
        """
        self._machine = machine
        self._policy = policy
        self._software = software
        self._strict = strict
        self._judge: Judge | None = None
        self._references: Expecting | None = None
        self._opened = False
        """Whether references were looked for: they are read once, and only if a figure has no record."""

    def load(self, baselines: Baselines | None, tests: Iterable[str]) -> None:
        """Takes the baselines, and the node ids of the perf tests that are going to run."""
        key, gpus = self._machine.key, self._machine.identity
        self._judge = Judge(
            key,
            baselines,
            tests,
            self._policy,
            gpus=gpus,
            today=today(),
            expects=self._expected,
            strict=self._strict,
        )

    def _expected(self, test: str, metric_name: str, metric: Metric, body_hash: str) -> Opinion:
        """What references expect of a figure, else what the model does."""
        rates = Rates.of(self._machine)
        if not self._opened:
            shelf = Shelf.open(self._machine.match)
            self._references = None if shelf is None else Expecting(shelf, rates, self._policy)
            self._opened = True
        said = None if self._references is None else self._references.opinion(test, metric_name, metric, body_hash)
        return opinion(metric, rates) if said is None else said

    @property
    def judge(self) -> Judge:
        """The judge of this run; there is one once the baselines are read."""
        assert self._judge is not None
        return self._judge

    @property
    def shift(self) -> float | None:
        """By how much all figures moved alike in two launches, as a fraction, worse above 0; None if they did not."""
        return None if self._judge is None else self._judge.shift

    @property
    def knows(self) -> bool:
        """Whether the records know these GPUs."""
        return self._judge is not None and self._judge.knows

    @property
    def moved(self) -> Sequence[str]:
        """Tests that a second launch has to run, as the figures of the first one moved all alike."""
        return [] if self._judge is None else self._judge.moved

    def second(self, test: str, metrics: Mapping[str, Metric]) -> None:
        """Takes the figures of such a test."""
        self.judge.second(test, metrics)

    def conclude(self, test: str, body_hash: str, metrics: Mapping[str, Metric]) -> list[Verdict]:
        """The verdicts on the figures of one test's first launch."""
        screened = [self.judge.screen(test, name, metric, body_hash) for name, metric in metrics.items()]
        return [self.judge.named(_with_variables(verdict, self._software()), self._software()) for verdict in screened]

    def unchecked(self, test: str, body_hash: str, metrics: Mapping[str, Metric]) -> list[str]:
        """The metrics of a test that have a baseline, of the body that it has now, and that it did not check."""
        entry = self.judge.entry(test)
        if entry is None or entry.body_hash != body_hash:
            return []
        return [name for name in entry.metrics if name not in metrics]

    def may_clear(self, suspect: Verdict, present: Sequence[Metric]) -> bool:
        """Whether one more launch of the present code may clear a suspect."""
        return self.judge.may_clear(suspect, present)

    def cleared(self, suspect: Verdict, present: Sequence[Metric]) -> Verdict | None:
        """A suspect that launches of the present code clear; None if they do not."""
        return self._named(self.judge.cleared(suspect, present))

    def commit_to_race(self, suspect: Verdict) -> str | None:
        """The newest clean commit of the suspect's record; None if there is none."""
        return self.judge.commit_to_race(suspect)

    def raced(self, suspect: Verdict, arms: Arms, *, over: bool) -> Verdict | None:
        """What a race makes of a suspect; None if it is still open."""
        return self._named(self.judge.raced(suspect, arms, over=over, now=self._software()))

    def same_code(self, suspect: Verdict, launches: Sequence[Metric], commit: str) -> Verdict:
        """What launches make of a suspect whose code is that of its record."""
        verdict = self.judge.same_code(suspect, launches, commit, now=self._software())
        return self.judge.named(verdict, self._software())

    def not_raced(self, suspect: Verdict, present: Sequence[Metric], why: str, *, over: bool) -> Verdict | None:
        """What becomes of a suspect that cannot race; None if one more launch may decide."""
        return self._named(self.judge.not_raced(suspect, present, why, over=over))

    def out_of_time(self, suspect: Verdict, present: Sequence[Metric]) -> Verdict:
        """What becomes of a suspect that no time is left for."""
        return self.judge.named(self.judge.out_of_time(suspect, present), self._software())

    def moved_from(self, verdict: Verdict) -> Moved | None:
        """Returns the record that a figure moved from; None if it did not move, or nothing tells from where."""
        return self.judge.moved_from(verdict)

    def choosing(self, verdict: Verdict, now: Mapping[str, str]) -> Verdict:
        """The same with what NCCL chooses otherwise than in its record."""
        return self.judge.choosing(verdict, now)

    def _named(self, verdict: Verdict | None) -> Verdict | None:
        """The verdict with what differs from its record; the suspect's own differences are the same."""
        return None if verdict is None else self.judge.named(verdict, self._software())


def _with_variables(verdict: Verdict, software: Mapping[str, str]) -> Verdict:
    """Adds the variables that are set to a figure that is below: there is no record from which they could differ."""
    said = verdict.opinion
    if said is None or said.saying is not Saying.BELOW:
        return verdict
    # NVIDIA's container images set the version, and NCCL does not read it.
    is_set = {name: ("", value) for name, value in software.items() if name.isupper() and name != "NCCL_VERSION"}
    variables = tuple(f"{name}={value}" for name, (_, value) in likeliest_first(is_set))
    return replace(verdict, opinion=replace(said, variables=variables))
