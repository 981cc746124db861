"""Judges of made-up records, and what they say."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pytest_gpuperf.baselines.schema import Baselines, MetricBaseline, TestBaseline
from pytest_gpuperf.features.racing.blocks import Blocks
from pytest_gpuperf.features.racing.suspect_judge import SuspectJudge
from pytest_gpuperf.figures.metric import Metric
from pytest_gpuperf.verdicts.judge import Judge
from pytest_gpuperf.verdicts.outcome import Outcome
from pytest_gpuperf.verdicts.rule import Policy
from pytest_gpuperf.verdicts.verdict import Verdict
from tests.baselines.examples import KEY, TEST, baselines, metric_baseline

GPUS = "GPU-1, GPU-2"
NOW = {"nccl": "2.29.0", "torch": "2.13.0"}
"""Versions of the run."""

# Ten launches within 0.1 %: the spread is the floor, 0.3 %. Then one of 22 %.
STEADY = metric_baseline(*[100.0 * (1 + 1e-4 * (i - 4.5)) for i in range(10)])
WILD = metric_baseline(*[100.0 * (1 + 6e-2 * (i - 4.5)) for i in range(10)])
ONCE = metric_baseline(100.0)


def judge_of(
    stored: MetricBaseline | None,
    *,
    tests: int = 1,
    policy: Policy | None = None,
    known: bool = True,
    now: Mapping[str, str] = NOW,
    **entry: Any,
) -> Judge:
    """A judge of so many tests, all with this record.

    Args:
        stored: What is recorded of each.
        tests: How many.
        policy: What is to be found.
        known: Whether the record is of the very GPUs of the run.
        now: Versions and variables of the run.
        entry: More of each test's entry.
    """
    names = [TEST, *(f"test_{i}" for i in range(tests - 1))]
    kept = TestBaseline("body-1", {"busbw": stored}, **entry) if stored is not None else None
    file = replace(baselines(*[1.0] * 10), tests={} if kept is None else dict.fromkeys(names, kept))
    launches = {id_: replace(info, gpus=GPUS if known else "others") for id_, info in file.launches.items()}
    return loaded(Judge(KEY, policy or Policy(), gpus=GPUS, now=lambda: now), replace(file, launches=launches), names)


def loaded(judge: Judge, baselines: Baselines | None, tests: Iterable[str]) -> Judge:
    judge.load(baselines, tests)
    return judge


def metrics(*values: float, **fields: Any) -> list[Metric]:
    given: dict[str, Any] = {"unit": "B/s", "better": "higher", **fields}
    return [Metric(value, **given) for value in values]


def screened(judge: Judge, value: float, **fields: Any) -> Verdict:
    return judge.screen(TEST, "busbw", metrics(value, **fields)[0], "body-1")


def verdict_of(value: float, stored: MetricBaseline | None = STEADY, **fields: Any) -> Verdict:
    body = fields.pop("body", "body-1")
    return judge_of(stored).screen(TEST, "busbw", metrics(value, **fields)[0], body)


def raced(
    judge: Judge, old: Sequence[float], present: Sequence[float], *, over: bool = False, **fields: Any
) -> Verdict | None:
    """What a race makes of a suspect of 90."""
    suspect = screened(judge, 90.0, **fields)
    assert (suspect.outcome, suspect.suspect) == (Outcome.UNDECIDED, True)
    arms = Blocks(metrics(*old, **fields), metrics(*present, **fields), "abc123")
    return SuspectJudge(judge).judge_race(suspect, arms, over=over)
