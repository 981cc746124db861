"""The judge: what screening makes of a metric, and what launches after that make of a suspect."""

from dataclasses import replace
from datetime import date
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf.baselines.reviewed import KnownRegression
from pytest_gpuperf.baselines.schema import MetricBaseline
from pytest_gpuperf.features.racing.blocks import Blocks
from pytest_gpuperf.features.racing.suspect_judge import SuspectJudge
from pytest_gpuperf.figures.conditions import Gate, Tripped
from pytest_gpuperf.figures.metric import Metric
from pytest_gpuperf.verdicts.expectations import Expects
from pytest_gpuperf.verdicts.judge import Judge
from pytest_gpuperf.verdicts.opinion import Opinion, Saying
from pytest_gpuperf.verdicts.outcome import Outcome, Reason
from pytest_gpuperf.verdicts.rule import MOST_CLEARING, Policy
from pytest_gpuperf.verdicts.verdict import Verdict
from tests.baselines.examples import KEY, TEST, baselines, metric_baseline
from tests.verdicts.judged import GPUS, ONCE, STEADY, WILD, judge_of, loaded, metrics, raced, screened, verdict_of

SUSPECT = Outcome.UNDECIDED, Reason.SUSPECT
ASKED = Outcome.UNDECIDED, Reason.ASKED


def said(verdict: Verdict | None) -> tuple[Outcome, Reason | None]:
    assert verdict is not None
    return verdict.outcome, verdict.reason


@pytest.mark.parametrize(
    ("value", "stored", "expected"),
    [
        (100.0, STEADY, (Outcome.SAME, None)),
        (97.0, STEADY, (Outcome.SAME, None)),
        (95.0, STEADY, SUSPECT),
        (104.9, STEADY, (Outcome.SAME, None)),
        (105.2, STEADY, (Outcome.IMPROVED, None)),
        (95.0, WILD, (Outcome.UNJUDGED, Reason.NOISY)),  # the screen does not see so little in it, and says so
        (20.0, WILD, SUSPECT),
        (100.0, ONCE, SUSPECT),  # nothing is known of its spread
    ],
)
def test_a_launch_is_screened(value: float, stored: MetricBaseline, expected: tuple[Outcome, Reason | None]) -> None:
    assert said(verdict_of(value, stored)) == expected


@pytest.mark.parametrize(("value", "suspect"), [(105.5, True), (95.0, False)])
def test_a_time_is_worse_when_it_is_longer(value: float, suspect: bool) -> None:
    stored = replace(STEADY, unit="s", better="lower")
    assert verdict_of(value, stored, unit="s", better="lower").suspect is suspect


@given(st.floats(0.5, 2.0))
def test_a_time_and_the_throughput_made_from_it_have_one_verdict(slowdown: float) -> None:
    times = [1 + 1e-3 * (i - 4.5) for i in range(10)]
    by_time = verdict_of(slowdown, metric_baseline(*times, unit="s", better="lower"), unit="s", better="lower")
    by_rate = verdict_of(1 / slowdown, metric_baseline(*[1 / time for time in times]))
    assert said(by_time) == said(by_rate)
    assert by_time.change is not None
    assert by_rate.change is not None
    assert 1 - by_time.change == pytest.approx(1 / (1 + by_rate.change))


def test_change_and_bound_are_said() -> None:
    worse = verdict_of(80.0)
    assert worse.change == pytest.approx(-0.2)
    assert worse.bound is not None
    assert 0.015 < worse.bound < 0.06  # what one launch finds
    wild = verdict_of(100.0, WILD).bound
    assert wild is not None
    assert wild > 0.2
    assert verdict_of(100.0, ONCE).bound is None


def test_figures_as_far_apart_as_floats_are_judged() -> None:
    gain = verdict_of(1e300, metric_baseline(*[1e-300] * 10))
    assert gain.outcome is Outcome.IMPROVED
    times = replace(metric_baseline(*[1e-300] * 10), unit="s", better="lower")
    assert verdict_of(1e300, times, unit="s", better="lower").suspect
    assert not verdict_of(1e-305, metric_baseline(*[1e-300, 1e300] * 5)).outcome.fails


@pytest.mark.parametrize(
    ("recorded", "gpus", "elsewhere"),
    [
        (["a", "b"], "c", True),
        (["a", "c"], "c", False),
        (["a", ""], "c", False),  # of one it is not known
        (["a", "b"], "", False),
    ],
)
def test_a_record_of_other_gpus_is_told(recorded: list[str], gpus: str, elsewhere: bool) -> None:
    known = baselines(*[100.0] * 10)
    infos = zip(known.launches.items(), recorded * 5, strict=True)
    known = replace(known, launches={id_: replace(info, gpus=where) for (id_, info), where in infos})
    judge = loaded(Judge(KEY, Policy(), gpus=gpus), known, [TEST])
    assert screened(judge, 80.0).elsewhere is elsewhere


def test_five_launches_on_these_gpus_place_a_figure() -> None:
    known = baselines(*[110.0, 110.1, 109.9, 110.0, 110.2], *[100.0, 100.1, 99.9, 100.0, 100.2])
    infos = zip(known.launches.items(), ["a"] * 5 + ["c"] * 5, strict=True)
    known = replace(known, launches={id_: replace(info, gpus=where) for (id_, info), where in infos})
    same = screened(loaded(Judge(KEY, Policy(), gpus="c"), known, [TEST]), 100.5)
    assert same.change == pytest.approx(0.005, abs=1e-6)
    assert said(same) == (Outcome.SAME, None)
    elsewhere = screened(loaded(Judge(KEY, Policy(), gpus="d"), known, [TEST]), 100.5)
    assert elsewhere.bound is not None
    assert same.bound is not None
    assert elsewhere.bound > 2 * same.bound  # the machines differ by 10 %


# Launches after the screen: against the record, on GPUs that it knows.


def test_launches_clear_a_suspect_and_the_first_one_counts() -> None:
    judge = judge_of(STEADY)
    suspect = screened(judge, 95.0)
    assert SuspectJudge(judge).may_clear(suspect, [])
    assert SuspectJudge(judge).clear(suspect, []) is None
    fresh: list[Metric] = []
    while (verdict := SuspectJudge(judge).clear(suspect, fresh)) is None:
        assert len(fresh) < MOST_CLEARING
        fresh += metrics(100.0)
    assert said(verdict) == (Outcome.SAME, Reason.CLEARED)
    assert verdict.launches == len(fresh) + 1
    assert not SuspectJudge(judge).may_clear(suspect, fresh)


def test_launches_that_are_as_slow_clear_nothing() -> None:
    judge = judge_of(STEADY, tests=100)
    suspect = screened(judge, 95.0)
    for count in range(1, MOST_CLEARING + 1):
        assert SuspectJudge(judge).clear(suspect, metrics(*[95.0] * count)) is None


def test_on_other_gpus_two_launches_clear_what_the_screen_would_pass() -> None:
    judge = judge_of(STEADY, known=False)
    suspect = screened(judge, 90.0)
    assert SuspectJudge(judge).may_clear(suspect, [])
    assert SuspectJudge(judge).may_clear(suspect, metrics(90.0))
    assert SuspectJudge(judge).clear(suspect, metrics(90.0, 90.0)) is None
    slow = screened(judge, 96.5)
    assert SuspectJudge(judge).may_clear(slow, metrics(96.5))
    assert not SuspectJudge(judge).may_clear(slow, metrics(96.5, 96.5))
    assert said(SuspectJudge(judge).clear(suspect, metrics(99.0, 99.0))) == (Outcome.SAME, Reason.CLEARED)


# Figures that are only shown.


def test_a_figure_whose_launches_hide_a_tenth_is_shown_and_never_the_same() -> None:
    """A guard that calls such a figure the same would claim what it cannot see."""
    judge = judge_of(WILD)
    for value in (60.0, 100.0, 140.0):
        verdict = screened(judge, value)
        assert said(verdict) == (Outcome.UNJUDGED, Reason.NOISY)
        assert verdict.bound is not None
        assert verdict.bound > 0.5
    assert said(screened(judge, 20.0)) == SUSPECT  # a fifth of the speed is beyond any scatter


@pytest.mark.parametrize(("value", "expected"), [(80.0, (Outcome.UNJUDGED, Reason.NOISY)), (40.0, SUSPECT)])
def test_what_depends_on_the_host_is_shown_on_other_gpus(value: float, expected: tuple[Outcome, Reason]) -> None:
    assert said(screened(judge_of(STEADY, known=False), value, scope="host")) == expected
    assert said(screened(judge_of(STEADY), value, scope="host")) == SUSPECT


def test_a_screen_that_passes_a_tenth_says_that_it_saw_nothing() -> None:
    """Machines that differ by 10 % hide as much on a new one, though their launches agree."""
    apart = baselines(*[110.0, 110.1, 109.9, 110.0, 110.2], *[100.0, 100.1, 99.9, 100.0, 100.2])
    infos = zip(apart.launches.items(), ["a"] * 5 + ["c"] * 5, strict=True)
    apart = replace(apart, launches={id_: replace(info, gpus=where) for (id_, info), where in infos})
    verdict = screened(loaded(Judge(KEY, Policy(), gpus="d"), apart, [TEST]), 97.0)
    assert said(verdict) == (Outcome.UNJUDGED, Reason.NOISY)


# Counts that never differed.

COUNTED = replace(metric_baseline(*[100.0] * 5, unit="B", better="lower"), clock="allocator")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (100.0, (Outcome.SAME, None)),
        (101.0, (Outcome.SAME, None)),  # never worth a failure
        (102.0, (Outcome.REGRESSED, Reason.EXACT)),
        (98.0, (Outcome.IMPROVED, Reason.EXACT)),
    ],
)
@pytest.mark.parametrize("known", [True, False])
def test_a_count_that_never_differed_needs_no_race(
    value: float, expected: tuple[Outcome, Reason | None], known: bool
) -> None:
    judge = judge_of(COUNTED, known=known)
    assert said(screened(judge, value, unit="B", better="lower", clock="allocator")) == expected


def test_a_time_that_never_differed_is_no_count() -> None:
    timed = judge_of(replace(COUNTED, clock="cuda_event"))
    assert said(screened(timed, 104.9, unit="B", better="lower", clock="cuda_event")) == SUSPECT


# Races.


def test_a_race_accuses_code_that_is_slower_than_the_records() -> None:
    verdict = raced(judge_of(STEADY), [100.0, 100.2] * 3, [94.0, 94.2] * 3)
    assert said(verdict) == (Outcome.REGRESSED, None)
    assert verdict is not None
    assert verdict.code is not None
    assert verdict.environment is not None
    assert verdict.against == "abc123"
    assert verdict.code.change == pytest.approx(-0.06, abs=1e-3)
    low, high = verdict.code.interval
    assert low < verdict.code.change < high < 0
    assert abs(verdict.environment.change) < 0.005
    assert verdict.launches == 6
    assert verdict.metric.value == pytest.approx(94.1)


def test_a_loss_that_the_old_code_has_too_is_the_environments() -> None:
    verdict = raced(judge_of(STEADY), [90.0, 90.2] * 3, [90.1, 90.0] * 3)
    assert said(verdict) == (Outcome.ENVIRONMENT, None)
    assert verdict is not None
    assert verdict.environment is not None
    assert verdict.environment.change == pytest.approx(-0.1, abs=2e-3)
    assert verdict.differs == {"nccl": ("2.28.9", "2.29.0")}


def test_of_a_loss_that_is_both_the_codes_share_decides_and_both_are_said() -> None:
    verdict = raced(judge_of(STEADY), [90.0, 90.2] * 3, [81.0, 81.2] * 3)
    assert said(verdict) == (Outcome.REGRESSED, None)
    assert verdict is not None
    assert verdict.code is not None
    assert verdict.environment is not None
    assert verdict.code.change < -0.05
    assert verdict.environment.change < -0.05


def test_a_loss_that_neither_arm_has_is_not_reproduced() -> None:
    verdict = raced(judge_of(STEADY), [100.0, 100.2] * 2, [100.1, 100.0] * 2)
    assert said(verdict) == (Outcome.SAME, Reason.NOT_REPRODUCED)


@pytest.mark.parametrize(
    ("launches", "expected"),
    [
        ([90.0, 90.2, 90.1, 90.0], (Outcome.ENVIRONMENT, None)),
        ([100.0, 99.9, 100.1, 100.0], (Outcome.SAME, Reason.NOT_REPRODUCED)),
        ([100.0, 94.0, 100.1, 100.0], (Outcome.SAME, Reason.NOT_REPRODUCED)),  # one bad launch decides nothing
    ],
)
def test_a_loss_of_unchanged_code_is_the_environments(
    launches: list[float], expected: tuple[Outcome, Reason | None]
) -> None:
    judge = judge_of(STEADY)
    verdict = SuspectJudge(judge).judge_same_code(screened(judge, 90.0), metrics(*launches), "abc")
    assert said(verdict) == expected
    assert (verdict.against, verdict.code, verdict.launches) == ("abc", None, 4)
    assert verdict.environment is not None
    assert verdict.environment.launches == 4
    both = raced(judge, launches[:2], launches[2:])  # a race that clears the code says the same of the environment
    assert both is not None
    assert verdict.environment.change == pytest.approx(both.environment.change if both.environment else None)
    assert verdict.differs == both.differs


def test_a_race_goes_on_until_it_is_over() -> None:
    old, present = [100.0, 100.2] * 7, [97.6, 97.6] * 7  # half way between the same and 5 % slower
    assert raced(judge_of(STEADY), old[:2], [100.0, 94.0]) is None
    assert said(raced(judge_of(STEADY), old, [100.0, 94.0] * 7, over=True)) == (Outcome.UNDECIDED, Reason.OPEN)
    assert raced(judge_of(STEADY), old[:2], present[:2], over=True) is not None


def test_a_race_clears_a_figure_that_scatters_widely() -> None:
    """No race could clear a loss of 5 %: launches that differ by 30 % are no evidence for so little."""
    judge, old, present = judge_of(WILD), [85.0, 115.0] * 7, [115.0, 85.0] * 7
    suspect = screened(judge, 20.0)
    assert suspect.suspect
    arms = Blocks(metrics(*old), metrics(*present), "abc123")
    found = SuspectJudge(judge).judge_race(suspect, arms, over=True)
    assert said(found) == (Outcome.UNJUDGED, Reason.NOISY)


def test_an_interval_beyond_what_is_to_be_found_accuses_when_the_race_is_over() -> None:
    """As -76.9 % (-88.4 % to -54.3 % in 14 launches), of a run of 100 metrics."""
    old = [168.0, 46.0, 69.0, 123.0, 57.0, 96.0, 110.0, 63.0, 49.0, 111.0, 173.0, 70.0, 83.0, 247.0]
    present = [22.0, 23.0, 113.0, 13.0, 46.0, 10.0, 22.0, 69.0, 59.0, 18.0, 23.0, 31.0, 15.0, 41.0]
    judge = judge_of(STEADY, tests=300)
    assert raced(judge, old, present) is None
    verdict = raced(judge, old, present, over=True)
    assert said(verdict) == (Outcome.REGRESSED, None)
    assert verdict is not None
    assert verdict.code is not None
    assert verdict.code.interval[1] < -0.5


def test_a_loss_that_is_never_worth_a_failure_passes() -> None:
    judge = judge_of(STEADY, policy=Policy(minimum_effect=0.04))
    verdict = raced(judge, [100.0] * 14, [97.0] * 14, over=True)
    assert verdict is not None
    assert verdict.outcome is not Outcome.REGRESSED


def test_a_machine_that_the_record_lacks_may_be_slower_down_to_half() -> None:
    elsewhere = judge_of(STEADY, known=False)
    assert said(raced(elsewhere, [70.0, 70.2] * 3, [70.1, 70.0] * 3)) == (Outcome.ENVIRONMENT, Reason.ELSEWHERE)
    assert said(raced(elsewhere, [40.0, 40.2] * 3, [40.1, 40.0] * 3)) == (Outcome.ENVIRONMENT, None)


def test_the_commit_of_most_launches_races() -> None:
    """One adopted launch of a slower commit is no reference: the centre is that of the others."""
    file = baselines(*[100.0] * 10)
    launches = {
        id_: replace(info, commit="b" * 7 if i == 9 else "a" * 7, at=f"2026-11-{10 + i}T10:00:00Z", gpus=GPUS)
        for i, (id_, info) in enumerate(file.launches.items())
    }
    judge = loaded(Judge(KEY, Policy(), gpus=GPUS), replace(file, launches=launches), [TEST])
    assert SuspectJudge(judge).commit_to_race(screened(judge, 80.0)) == "a" * 7


def test_of_commits_with_equally_many_launches_the_newest_races() -> None:
    file = baselines(*[100.0] * 10)
    commits = [f"{'abcdef'[i % 6]}{i:06d}" for i in range(10)]
    launches = {
        id_: replace(info, commit=commit, at=f"2026-11-{20 - i:02d}T10:00:00Z", dirty=i < 3, gpus=GPUS)
        for i, ((id_, info), commit) in enumerate(zip(file.launches.items(), commits, strict=True))
    }
    judge = loaded(Judge(KEY, Policy(), gpus=GPUS), replace(file, launches=launches), [TEST])
    assert SuspectJudge(judge).commit_to_race(screened(judge, 80.0)) == commits[3]
    dirty = {id_: replace(info, dirty=True) for id_, info in launches.items()}
    judge = loaded(Judge(KEY, Policy(), gpus=GPUS), replace(file, launches=dirty), [TEST])
    assert SuspectJudge(judge).commit_to_race(screened(judge, 80.0)) is None


# What cannot race.


def test_on_gpus_that_the_record_knows_it_decides_alone() -> None:
    judge = judge_of(STEADY)
    suspect = screened(judge, 90.0)
    assert SuspectJudge(judge).not_raced(suspect, [], "no git", over=False) is None
    lost = SuspectJudge(judge).not_raced(suspect, metrics(*[90.0] * 4), "no git", over=False)
    assert said(lost) == (Outcome.REGRESSED, Reason.NOT_RACED)
    assert lost is not None
    assert lost.detail == "no git"
    found = SuspectJudge(judge).not_raced(suspect, metrics(*[100.0] * 4), "no git", over=False)
    assert said(found) == (Outcome.SAME, Reason.CLEARED)
    open_ = SuspectJudge(judge).not_raced(suspect, [], "no git", over=True)
    assert said(open_) == (Outcome.UNDECIDED, Reason.OPEN)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (90.0, (Outcome.UNDECIDED, Reason.CANNOT_RACE)),
        (72.0, (Outcome.REGRESSED, Reason.GROSS)),
        (10.0, (Outcome.REGRESSED, Reason.GROSS)),
    ],
)
def test_on_others_a_loss_beyond_what_machines_differ_by_is_decided(
    value: float, expected: tuple[Outcome, Reason]
) -> None:
    judge = judge_of(STEADY, known=False)
    suspect = screened(judge, value)
    verdict = SuspectJudge(judge).not_raced(suspect, metrics(*[value] * 2), "no git", over=True)
    assert said(verdict) == expected
    assert verdict is not None
    assert verdict.detail == "no git"
    gross = expected[1] is Reason.GROSS
    late = SuspectJudge(judge).out_of_time(suspect, metrics(*[value] * 2))
    assert said(late) == (expected if gross else (Outcome.UNDECIDED, Reason.BUDGET))
    assert said(SuspectJudge(judge).out_of_time(suspect, metrics(95.0, 95.0))) == (Outcome.UNDECIDED, Reason.BUDGET)
    one_bad_launch = SuspectJudge(judge).not_raced(suspect, metrics(95.0, 95.0), "no git", over=True)
    assert said(one_bad_launch) == (Outcome.UNDECIDED, Reason.CANNOT_RACE)


@pytest.mark.parametrize(("apart", "reason"), [(0.1, Reason.CANNOT_RACE), (0.0, Reason.GROSS)])
def test_machines_of_the_record_tell_how_far_machines_differ(apart: float, reason: Reason) -> None:
    """20 % is nothing if recorded machines are 10 % apart, and much if they agree."""
    known = baselines(*[100.0 * (1 + apart * (i // 5 - 1) + 1e-4 * i) for i in range(15)])
    infos = zip(known.launches.items(), "aaaaabbbbbccccc", strict=True)
    known = replace(known, launches={id_: replace(info, gpus=where) for (id_, info), where in infos})
    judge = loaded(Judge(KEY, Policy(), gpus="d"), known, [TEST])
    assert said(SuspectJudge(judge).not_raced(screened(judge, 80.0), [], "no git", over=True))[1] is reason


# Known regressions.

KNOWN = {"busbw": KnownRegression("a slow driver", date(2027, 1, 31), 91.0)}


@pytest.mark.parametrize(
    ("value", "today", "expected"),
    [
        (90.5, date(2027, 1, 31), (Outcome.EXPECTED, None)),
        (90.5, date(2027, 2, 1), SUSPECT),
        (80.0, date(2027, 1, 31), SUSPECT),  # worse than expected
        (100.0, date(2027, 1, 31), (Outcome.SAME, None)),
    ],
)
def test_a_known_regression_races_only_if_it_is_worse(
    value: float, today: date, expected: tuple[Outcome, Reason | None]
) -> None:
    judge = judge_of(STEADY, expected=KNOWN)
    judge._today = today
    verdict = screened(judge, value)
    assert said(verdict) == expected
    assert verdict.expected == KNOWN["busbw"]


def test_a_race_that_finds_no_more_than_was_known_is_expected() -> None:
    judge = judge_of(STEADY, expected=KNOWN)
    judge._today = date(2027, 1, 1)
    suspect = screened(judge, 80.0)
    arms = [100.0] * 6, [90.5] * 6
    verdict = raced_suspect(judge, suspect, *arms)
    assert said(verdict) == (Outcome.EXPECTED, None)
    assert said(raced_suspect(judge, suspect, [100.0] * 6, [80.0] * 6)) == (Outcome.REGRESSED, None)


def raced_suspect(judge: Judge, suspect: Verdict, old: list[float], present: list[float]) -> Verdict | None:
    return SuspectJudge(judge).judge_race(suspect, Blocks(metrics(*old), metrics(*present), "abc123"), over=False)


def test_a_known_regression_does_not_excuse_what_the_test_asks_for() -> None:
    judge = judge_of(STEADY, expected=KNOWN)
    judge._today = date(2027, 1, 1)
    assert said(screened(judge, 90.5, interval=(89.0, 92.0), at_least=91.0)) == ASKED
    assert said(screened(judge, 90.5, interval=(89.0, 92.0), at_least=88.0)) == (Outcome.EXPECTED, None)


# What the test itself asks for.

MET = metric_baseline(*[1.3 * (1 + 1e-4 * (i - 4.5)) for i in range(10)], unit="x")
MISSED = Outcome.MISSED, None


@pytest.mark.parametrize(
    ("value", "interval", "stored", "expected"),
    [
        (1.1, (1.05, 1.15), None, MISSED),
        (1.1, (1.05, 1.15), STEADY, MISSED),
        (1.1, (1.05, 1.15), MET, MISSED),
        (1.25, (1.1, 1.3), None, (Outcome.MISSING, Reason.NO_RECORD)),
        (1.25, (1.1, 1.3), STEADY, (Outcome.MISSING, Reason.STALE)),
        (1.2, (1.1, 1.3), MET, SUSPECT),
        (1.3, (1.1, 1.5), MET, ASKED),
        (1.5, (1.1, 1.9), MET, ASKED),
        (1.3, (1.1, 1.2), MET, ASKED),  # just reached it may have
        (1.3, (1.2, 1.4), MET, (Outcome.SAME, None)),  # and just reached it has
        (1.5, (1.25, 1.9), MET, (Outcome.IMPROVED, None)),
    ],
)
def test_the_worse_of_record_and_what_the_test_asks_for_is_said(
    value: float,
    interval: tuple[float, float],
    stored: MetricBaseline | None,
    expected: tuple[Outcome, Reason | None],
) -> None:
    assert said(verdict_of(value, stored, unit="x", at_least=1.2, interval=interval)) == expected


@pytest.mark.parametrize(
    ("half", "expected"),
    [(0.05, (Outcome.SAME, Reason.NOT_REPRODUCED)), (0.2, ASKED), (None, (Outcome.SAME, Reason.NOT_REPRODUCED))],
)
def test_a_race_too_must_reach_what_the_test_asks_for(
    half: float | None, expected: tuple[Outcome, Reason | None]
) -> None:
    def figures(value: float) -> list[Metric]:
        interval = None if half is None else (value - half, value + half)
        return metrics(*[value] * 4, unit="x", interval=interval, at_least=1.2)

    judge = judge_of(MET)
    suspect = screened(judge, 1.21, unit="x", interval=(1.205, 1.22), at_least=1.2)
    assert suspect.suspect
    verdict = SuspectJudge(judge).judge_race(suspect, Blocks(figures(1.3), figures(1.3), "abc"), over=False)
    assert said(verdict) == expected


# What no record is asked about.


def test_a_machine_that_was_not_fit_comes_before_a_figure_above_the_limit() -> None:
    hot = (Tripped("GPU-1", Gate.POWER_BRAKE),)
    assert said(verdict_of(100.0, STEADY, limit=90.0, invalid=hot)) == (Outcome.INVALID, Reason.UNFIT)


def test_above_the_limit_is_invalid_whatever_the_record() -> None:
    for stored, body in ((STEADY, "body-1"), (None, "body-1"), (STEADY, "body-2")):
        found = said(verdict_of(100.0, stored, limit=90.0, body=body))
        assert found == (Outcome.INVALID, Reason.ABOVE_LIMIT)


CHANNELS = {"nccl": "2.28.9", "torch": "2.13.0", "NCCL_MAX_NCHANNELS": "12"}


@pytest.mark.parametrize(("value", "outcome"), [(90.0, Outcome.UNDECIDED), (110.0, Outcome.IMPROVED)])
def test_a_figure_that_is_not_the_same_names_what_differs_from_its_record(value: float, outcome: Outcome) -> None:
    judge = judge_of(STEADY, now=CHANNELS)
    verdict = judge.name_differences(screened(judge, value))
    assert (verdict.outcome, verdict.differs) == (outcome, {"NCCL_MAX_NCHANNELS": ("", "12")})
    assert judge.name_differences(verdict) is verdict


def test_a_figure_that_is_the_same_or_has_no_record_names_nothing() -> None:
    judge = judge_of(STEADY, now=CHANNELS)
    assert judge.name_differences(screened(judge, 100.0)).differs == {}
    assert judge.name_differences(verdict_of(100.0, None)).differs == {}


def test_no_record_is_missing() -> None:
    verdict = verdict_of(100.0, None)
    assert (said(verdict), verdict.baseline, verdict.change) == ((Outcome.MISSING, Reason.NO_RECORD), None, None)


@pytest.mark.parametrize(
    ("saying", "strict", "reason", "fails"),
    [
        (Saying.PLAUSIBLE, False, Reason.PLAUSIBLE, False),
        (Saying.ABOVE, False, Reason.ABOVE_MODEL, True),
        (Saying.NONE, False, Reason.NOT_JUDGED, False),
        (Saying.PLAUSIBLE, True, Reason.NO_RECORD, True),
        (Saying.NONE, True, Reason.NO_RECORD, True),
    ],
)
def test_without_a_record_what_is_expected_has_the_only_say(
    saying: Saying, strict: bool, reason: Reason, fails: bool
) -> None:
    said_so = Opinion(saying, 1.0, 2.0, "links")
    judge = loaded(Judge(KEY, Policy(), expects=lambda *_: said_so, strict=strict), None, [TEST])
    verdict = judge.screen(TEST, "busbw", metrics(100.0)[0], "body-1")
    assert (said(verdict), verdict.opinion, verdict.fails) == ((Outcome.MISSING, reason), said_so, fails)


def above(bound: float) -> Expects:
    """References that expect a bandwidth of at least this."""

    def expects(test: str, metric_name: str, metric: Metric, body_hash: str) -> Opinion:
        assert (test, metric_name, body_hash) == (TEST, "busbw", "body-1")
        return Opinion(Saying.PLAUSIBLE if metric.value >= bound else Saying.BELOW, bound, source="9 launches")

    return expects


@pytest.mark.parametrize(
    ("later", "reason", "median"),
    [((80.0, 81.0), Reason.BELOW, 81.0), ((95.0, 96.0), Reason.PLAUSIBLE, 95.0), ((80.0, 96.0), Reason.BELOW, 85.0)],
)
def test_a_figure_below_what_is_expected_is_decided_by_the_median_of_three_launches(
    later: tuple[float, ...], reason: Reason, median: float
) -> None:
    judge = loaded(Judge(KEY, Policy(), expects=above(90.0), strict=False), None, [TEST])
    suspect = judge.screen(TEST, "busbw", metrics(85.0)[0], "body-1")
    assert (said(suspect), suspect.suspect) == ((Outcome.UNDECIDED, Reason.SUSPECT), True)
    for launches in range(2):
        assert SuspectJudge(judge).may_clear(suspect, metrics(*later[:launches]))
        assert SuspectJudge(judge).clear(suspect, metrics(*later[:launches])) is None
    assert not SuspectJudge(judge).may_clear(suspect, metrics(*later))
    found = SuspectJudge(judge).clear(suspect, metrics(*later))
    assert found is not None
    assert (said(found), found.metric.value, found.launches) == ((Outcome.MISSING, reason), median, 3)
    assert found.fails is (reason is Reason.BELOW)


def test_many_tests_that_are_below_at_once_are_no_chance() -> None:
    judge = loaded(Judge(KEY, Policy(), expects=lambda *_: Opinion(Saying.BELOW, 90.0), strict=False), None, [TEST])
    suspects = [judge.screen(f"test_{number}", "busbw", metrics(85.0)[0], "body") for number in range(13)]
    assert not SuspectJudge(judge).may_clear(suspects[0], [])
    found = SuspectJudge(judge).clear(suspects[0], [])
    assert found is not None
    assert (said(found), found.launches) == ((Outcome.MISSING, Reason.BELOW), 1)


def test_an_unfit_measurement_without_a_record_tells_what_was_expected() -> None:
    judge = loaded(Judge(KEY, Policy(), expects=above(90.0), strict=True), None, [TEST])
    metric = replace(metrics(85.0)[0], invalid=(Tripped("GPU-0", Gate.OTHER_PROCESSES, 1.0, 0.0),))
    verdict = judge.screen(TEST, "busbw", metric, "body-1")
    assert said(verdict) == (Outcome.INVALID, Reason.UNFIT)
    assert verdict.opinion is not None
    assert verdict.opinion.saying is Saying.BELOW


def test_a_model_has_no_say_where_there_is_a_record_or_a_stale_one() -> None:
    judge = loaded(Judge(KEY, Policy(), expects=lambda *_: Opinion(Saying.BELOW), strict=False), baselines(), [TEST])
    assert judge.screen(TEST, "busbw", metrics(356e9, clock="cuda_event")[0], "body-1").opinion is None
    stale = judge.screen(TEST, "busbw", metrics(356e9)[0], "body-2")
    assert (said(stale), stale.opinion, stale.fails) == ((Outcome.MISSING, Reason.STALE), None, True)


@pytest.mark.parametrize(
    ("interval", "found"), [((1.1, 1.3), (Outcome.MISSED, None)), ((1.3, 1.7), ASKED), ((1.6, 1.7), None)]
)
def test_a_plausible_speedup_still_has_to_reach_what_is_asked(
    interval: tuple[float, float], found: tuple[Outcome, Reason | None] | None
) -> None:
    judge = loaded(Judge(KEY, Policy(), expects=lambda *_: Opinion(Saying.PLAUSIBLE), strict=False), None, [TEST])
    metric = metrics(1.5, unit="x", interval=interval, at_least=1.5)[0]
    assert said(judge.screen(TEST, "speedup", metric, "body-1")) == (found or (Outcome.MISSING, Reason.PLAUSIBLE))


def test_a_record_of_other_metrics_is_missing() -> None:
    verdict = judge_of(STEADY).screen(TEST, "time", metrics(100.0)[0], "body-1")
    assert said(verdict) == (Outcome.MISSING, Reason.NO_RECORD)


@pytest.mark.parametrize(
    "fields",
    [{"body": "body-2"}, {"unit": "s"}, {"better": "lower"}, {"clock": "cuda_graph"}],
)
def test_a_record_of_something_else_is_stale(fields: dict[str, Any]) -> None:
    verdict = verdict_of(100.0, **fields)
    assert (said(verdict), verdict.baseline, verdict.change) == ((Outcome.MISSING, Reason.STALE), STEADY, None)


def test_an_unnamed_clock_is_any_clock() -> None:
    assert verdict_of(100.0, clock="").outcome is Outcome.SAME
    assert verdict_of(100.0, replace(STEADY, clock=""), clock="cuda_graph").outcome is Outcome.SAME


# The run as a whole.


def test_a_run_that_moved_as_a_whole_has_to_do_so_twice() -> None:
    judge = judge_of(STEADY, tests=12)
    names = [TEST, *(f"test_{i}" for i in range(11))]
    assert SuspectJudge(judge).moved == []
    for name in names:
        judge.screen(name, "busbw", metrics(98.0)[0], "body-1")
    assert SuspectJudge(judge).moved == names
    assert judge.shift is None
    for name in names:
        SuspectJudge(judge).second(name, {"busbw": metrics(97.5)[0], "new": metrics(1.0)[0]})
    assert judge.shift == pytest.approx(100 / 98 - 1, abs=1e-4)  # the smaller one of the two
    for name in names:
        SuspectJudge(judge).second(name, {"busbw": metrics(100.0)[0]})
    assert judge.shift is None
    for name in names:
        SuspectJudge(judge).second(name, {"busbw": metrics(103.0)[0]})
    assert judge.shift is None
