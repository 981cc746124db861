"""Judges of made-up baselines, and what they say."""

from dataclasses import replace
from typing import Any

from pytest_gpuperf.baselines.schema import MetricBaseline, TestBaseline
from pytest_gpuperf.figures.metric import Metric
from pytest_gpuperf.verdicts.judge import Judge
from pytest_gpuperf.verdicts.outcome import Outcome
from pytest_gpuperf.verdicts.rule import Policy
from pytest_gpuperf.verdicts.verdict import Verdict
from tests.baselines.examples import KEY, TEST, baselines, metric_baseline

# Ten launches within 0.1 %: the spread is the floor, 0.3 %. Then those of 1.1 % (looser), 0.7 % (loose) and 22 %.
STEADY = metric_baseline(*[100.0 * (1 + 1e-4 * (i - 4.5)) for i in range(10)])


LOOSER = metric_baseline(*[100.0 * (1 + 4e-3 * (i - 4.5)) for i in range(10)])


LOOSE = metric_baseline(*[100.0 * (1 + 2e-3 * (i - 4.5)) for i in range(10)])


WILD = metric_baseline(*[100.0 * (1 + 6e-2 * (i - 4.5)) for i in range(10)])


ONCE = metric_baseline(100.0)


def judge_of(stored: MetricBaseline | None, *, tests: int = 1, policy: Policy | None = None) -> Judge:
    """A judge of so many tests, all with this baseline."""
    names = [TEST, *(f"test_{i}" for i in range(tests - 1))]
    entry = TestBaseline("body-1", {"busbw": stored}) if stored is not None else None
    known = replace(baselines(*[1.0] * 10), tests={} if entry is None else dict.fromkeys(names, entry))
    return Judge(KEY, known, names, policy or Policy())


def verdict_of(value: float, stored: MetricBaseline | None = STEADY, **fields: Any) -> Verdict:
    given_ = {"unit": "B/s", "better": "higher", **fields}
    body = given_.pop("body", "body-1")
    return judge_of(stored).screen(TEST, "busbw", Metric(value, **given_), body)


def confirmed(stored: MetricBaseline, *values: float, first: float = 90.0, **fields: Any) -> Verdict:
    given_: dict[str, Any] = {"unit": "B/s", "better": "higher", **fields}
    judge = judge_of(stored)
    suspect = judge.screen(TEST, "busbw", Metric(first, **given_), "body-1")
    assert suspect.outcome is Outcome.SUSPECT
    return judge.confirm(suspect, [Metric(value, **given_) for value in values])
