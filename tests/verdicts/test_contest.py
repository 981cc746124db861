"""Races of all figures, without a record."""

from typing import Any

import pytest

from pytest_gpuperf.features.racing.blocks import Blocks
from pytest_gpuperf.features.racing.contest import Contest
from pytest_gpuperf.figures.metric import Metric
from pytest_gpuperf.verdicts.outcome import Outcome, Reason
from pytest_gpuperf.verdicts.race import MOST_BLOCKS
from pytest_gpuperf.verdicts.rule import Policy
from pytest_gpuperf.verdicts.verdict import Verdict
from tests.verdicts.judged import metrics

KEY = "2x-nvidia-h200-nv18"
QUIET = (100.0, 100.2, 99.9, 100.1) * 3


def raced(old: list[float], present: list[float], *, over: bool = False, **fields: Any) -> Verdict | None:
    contest = Contest(KEY, Policy())
    (suspect,) = contest.conclude("t.py::test", "", {"busbw": metrics(present[0], **fields)[0]})
    assert (suspect.outcome, suspect.reason) == (Outcome.UNDECIDED, Reason.SUSPECT)
    return contest.judge_race(suspect, Blocks(metrics(*old, **fields), metrics(*present, **fields), "main"), over=over)


@pytest.mark.parametrize(
    ("factor", "outcome"), [(0.9, Outcome.REGRESSED), (1.0, Outcome.SAME), (1.1, Outcome.IMPROVED)]
)
def test_a_race_without_a_record(factor: float, outcome: Outcome) -> None:
    verdict = raced(list(QUIET), [factor * value for value in QUIET[::-1]])
    assert verdict is not None
    assert (verdict.outcome, verdict.reason) == (outcome, None)
    assert verdict.baseline is None
    assert verdict.environment is None
    assert verdict.code is not None
    assert verdict.code.change == pytest.approx(factor - 1, abs=3e-3)
    assert (verdict.against, verdict.launches) == ("main", 12)


def test_one_block_of_a_noisy_figure_decides_nothing() -> None:
    assert raced([100.0, 107.0], [101.0, 94.0]) is None


def test_what_is_open_at_the_end_is_undecided() -> None:
    old, present = [100.0, 130.0] * MOST_BLOCKS, [125.0, 99.0] * MOST_BLOCKS
    verdict = raced(old, present, over=True)
    assert verdict is not None
    assert (verdict.outcome, verdict.reason) == (Outcome.UNDECIDED, Reason.OPEN)
    assert verdict.code is not None


def test_a_race_that_runs_out_of_time_shows_both_values() -> None:
    contest = Contest(KEY, Policy())
    (suspect,) = contest.conclude("t.py::test", "", {"busbw": metrics(50.0)[0]})
    noisy = contest.judge_stopped(suspect, Blocks(metrics(100.0, 107.0), metrics(101.0, 94.0), "main"))
    assert (noisy.outcome, noisy.reason, noisy.launches) == (Outcome.UNDECIDED, Reason.BUDGET, 2)
    assert noisy.old == pytest.approx(103.4, abs=0.2)
    assert noisy.code is not None
    plain = contest.judge_stopped(suspect, Blocks(metrics(*QUIET), metrics(*(0.5 * value for value in QUIET)), "main"))
    assert (plain.outcome, plain.reason) == (Outcome.REGRESSED, None)


def test_figures_share_the_chance_of_a_false_alarm() -> None:
    def needed(others: int) -> int:
        contest = Contest(KEY, Policy())
        (suspect,) = contest.conclude("t.py::test", "", {"busbw": metrics(94.0)[0]})
        contest._entered += others
        for blocks in range(1, MOST_BLOCKS + 1):
            both = Blocks(
                metrics(*QUIET[:2] * blocks), metrics(*[0.94 * value for value in QUIET[:2] * blocks]), "main"
            )
            verdict = contest.judge_race(suspect, both, over=False)
            if verdict is not None and verdict.outcome is Outcome.REGRESSED:
                return blocks
        raise AssertionError("no race decided")

    assert needed(100_000) > needed(0)


def test_a_measurement_that_is_worth_nothing_does_not_race() -> None:
    contest = Contest(KEY, Policy())
    (verdict,) = contest.conclude("t.py::test", "", {"busbw": Metric(100.0, "B/s", "higher", limit=50.0)})
    assert (verdict.outcome, verdict.reason) == (Outcome.INVALID, Reason.ABOVE_LIMIT)


def test_a_race_must_reach_what_the_test_asks_for() -> None:
    verdict = raced(list(QUIET), list(QUIET), interval=(90.0, 95.0), at_least=99.0)
    assert verdict is not None
    assert verdict.outcome is Outcome.MISSED
