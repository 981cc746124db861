"""Who judges the metrics of a run: the baselines of its hardware, unless a feature has something else do it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import pytest

from pytest_gpuperf.baselines.provenance import read_date
from pytest_gpuperf.figures.metric import Metric
from pytest_gpuperf.hardware.machine import Machine
from pytest_gpuperf.verdicts.expectations import Expects
from pytest_gpuperf.verdicts.judge import Judge
from pytest_gpuperf.verdicts.rule import Policy
from pytest_gpuperf.verdicts.verdict import Verdict


class Judging(Protocol):
    """Judges the metrics of one run."""

    def conclude(self, test: str, body_hash: str, metrics: Mapping[str, Metric]) -> list[Verdict]:
        """Returns the verdicts on the metrics of one test.

        Args:
            test: node id.
            body_hash: hash of the code that was measured.
            metrics: by name.
        """
        ...

    def list_unchecked(self, test: str, body_hash: str, metrics: Mapping[str, Metric]) -> list[str]:
        """Returns the metrics that a test did not check, and that it had to."""
        ...

    @property
    def shift(self) -> float | None:
        """By how much all metrics moved alike, as a fraction, worse above 0; None if they did not."""
        ...

    @property
    def knows(self) -> bool:
        """Whether the record of a metric knows these GPUs."""
        ...


@dataclass(frozen=True, slots=True)
class Judged:
    """Who judges, or keeps, the metrics of a run in the place of the baselines."""

    by: Judging | None
    """None if this process only measures."""
    on_cpus: bool = False
    """Whether metrics of CPUs say how fast something is; without GPUs, nobody judges them otherwise."""
    reports: bool = True
    """Whether this process reports; if not, another one does."""
    reads: bool = False
    """Whether the baselines are read before anything is measured."""
    launches: int = 1
    """How often each perf test runs, each time in fresh processes."""


def find_judge(answers: Sequence[Judged]) -> Judged | None:
    """Returns who judges in the place of the baselines; None if no feature has somebody do it.

    Raises:
        pytest.UsageError: two features do.
    """
    if len(answers) > 1:
        judges = [f"{type(answer.by).__module__}.{type(answer.by).__qualname__}" for answer in answers]
        raise pytest.UsageError(
            f"one feature judges the metrics of a run, got {' and '.join(judges)}: drop the options of all but one"
        )
    return answers[0] if answers else None


def make_judge(
    machine: Machine,
    policy: Policy,
    software: Callable[[], Mapping[str, str]],
    expects: Expects | None,
    *,
    strict: bool = True,
) -> Judge:
    """Returns a judge that knows no baselines yet.

    Args:
        machine: of the run.
        policy: what a verdict may get wrong, and which loss it must find.
        software: Returns the versions and variables of the run.
        expects: Says what is expected of a metric without a record; None: nothing.
        strict: whether a metric without a record fails, whatever is expected of it.
    """
    return Judge(
        machine.key,
        policy,
        gpus=machine.identity,
        today=read_date(),
        expects=expects,
        strict=strict,
        now=software,
    )


def fails_as_a_whole(judging: Judging | None, fails: bool | None) -> bool:
    """Whether a run fails because all its metrics are slower alike, in two launches.

    Args:
        judging: judged the metrics; None if they are only shown.
        fails: whether that fails a run; None: only if a record knows these GPUs.
    """
    if judging is None or (judging.shift or 0.0) <= 0.0:
        return False
    return judging.knows if fails is None else fails
