"""The judge: what screening makes of a figure, and what fresh launches make of a suspect."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf.verdicts.baselines import MetricBaseline, TestBaseline
from pytest_gpuperf.verdicts.controls import Control
from pytest_gpuperf.verdicts.history import History
from pytest_gpuperf.verdicts.json_fields import FieldError
from pytest_gpuperf.verdicts.judge import Judge, Outcome, Verdict
from pytest_gpuperf.verdicts.metric import Metric
from pytest_gpuperf.verdicts.rule import Policy
from tests.verdicts.examples import KEY, TEST, baselines, metric_baseline

# Ten launches within 0.1 %: the spread is the floor, 0.3 %. Then those of 1.1 % (looser), 0.7 % (loose) and 22 %.
STEADY = metric_baseline(*[100.0 * (1 + 1e-4 * (i - 4.5)) for i in range(10)])
LOOSER = metric_baseline(*[100.0 * (1 + 3e-3 * (i - 4.5)) for i in range(10)])
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


@pytest.mark.parametrize(
    ("value", "stored", "outcome"),
    [
        (100.0, STEADY, Outcome.SAME),
        (97.0, STEADY, Outcome.SAME),
        (95.0, STEADY, Outcome.SUSPECT),
        (101.0, STEADY, Outcome.SAME),
        (104.9, STEADY, Outcome.SAME),
        (105.1, STEADY, Outcome.IMPROVED),
        (99.0, LOOSE, Outcome.SAME),
        (95.0, LOOSE, Outcome.SUSPECT),
        (110.0, LOOSE, Outcome.IMPROVED),
        (100.0, WILD, Outcome.SUSPECT),  # a loss of 5 % could hide in it
        (100.0, ONCE, Outcome.SUSPECT),  # nothing is known of its spread
    ],
)
def test_a_launch_is_screened(value: float, stored: MetricBaseline, outcome: Outcome) -> None:
    assert verdict_of(value, stored).outcome is outcome


@pytest.mark.parametrize(("value", "outcome"), [(105.0, Outcome.SUSPECT), (95.0, Outcome.IMPROVED)])
def test_a_time_is_worse_when_it_is_longer(value: float, outcome: Outcome) -> None:
    stored = replace(STEADY, unit="s", better="lower")
    assert verdict_of(value, stored, unit="s", better="lower").outcome is outcome


@given(st.floats(0.5, 2.0))
def test_a_time_and_the_throughput_made_from_it_have_one_verdict(slowdown: float) -> None:
    times = [1 + 1e-3 * (i - 4.5) for i in range(10)]
    by_time = verdict_of(slowdown, metric_baseline(*times, unit="s", better="lower"), unit="s", better="lower")
    by_rate = verdict_of(1 / slowdown, metric_baseline(*[1 / time for time in times]))
    assert by_time.outcome is by_rate.outcome
    assert by_time.change is not None
    assert by_rate.change is not None
    assert 1 - by_time.change == pytest.approx(1 / (1 + by_rate.change))


def test_change_and_bound_are_said() -> None:
    worse = verdict_of(80.0)
    assert worse.change == pytest.approx(-0.2)
    assert worse.bound is not None
    assert 0.015 < worse.bound < 0.05  # what one launch could have shown
    slower = verdict_of(1.3, metric_baseline(*[1.0] * 10, unit="s", better="lower"), unit="s", better="lower")
    assert slower.change == pytest.approx(-0.3)
    assert verdict_of(100.0, ONCE).bound is None


def test_a_suspect_needs_launches_by_its_spread() -> None:
    for stored, least, most in ((STEADY, 5, 5), (LOOSER, 6, 25)):
        judge = judge_of(stored, tests=100)
        launches = judge.launches(judge.screen(TEST, "busbw", Metric(90.0, "B/s", "higher"), "body-1"))
        assert launches is not None
        assert least <= launches <= most


@pytest.mark.parametrize("stored", [WILD, ONCE], ids=["wild", "once"])
def test_no_launches_decide_where_too_little_is_known(stored: MetricBaseline) -> None:
    judge = judge_of(stored)
    suspect = judge.screen(TEST, "busbw", Metric(90.0, "B/s", "higher"), "body-1")
    assert judge.launches(suspect) is None
    undecided = judge.confirm(suspect, [])
    assert (undecided.outcome, undecided.launches, undecided.interval) == (Outcome.UNDECIDED, 1, None)


def test_it_is_said_how_many_launches_of_a_baseline_would_do() -> None:
    judge = judge_of(metric_baseline(*[100.0 * (1 + 6e-3 * (i - 2)) for i in range(5)]))
    undecided = judge.confirm(judge.screen(TEST, "busbw", Metric(90.0, "B/s", "higher"), "body-1"), [])
    assert undecided.needed is not None
    assert undecided.needed > 5


def test_fresh_launches_alone_decide() -> None:
    cleared = confirmed(STEADY, 100.0, 99.9, 100.2, 100.1, 99.8, first=60.0)
    assert (cleared.outcome, cleared.launches, cleared.metric.value) == (Outcome.SAME, 5, 100.0)
    regressed = confirmed(STEADY, 94.0, 93.0, 95.0, 94.0, 94.0, first=96.0)
    assert (regressed.outcome, regressed.metric.value) == (Outcome.REGRESSED, 94.0)
    assert regressed.change == pytest.approx(-0.06)


def test_bad_launches_among_the_fresh_ones_do_not_fail() -> None:
    assert confirmed(STEADY, 100.0, 70.0, 100.0, 70.0, 100.0).outcome is Outcome.SAME


@pytest.mark.parametrize(
    ("unit", "better", "values"), [("B/s", "higher", (94.0, 95.0, 93.0, 94.0, 94.0)), ("s", "lower", (106.0,) * 5)]
)
def test_the_interval_holds_the_change(
    unit: str, better: Literal["higher", "lower"], values: tuple[float, ...]
) -> None:
    stored = replace(STEADY, unit=unit, better=better)
    verdict = confirmed(stored, *values, first=values[0], unit=unit, better=better)
    assert verdict.interval is not None
    assert verdict.change is not None
    assert verdict.interval[0] < verdict.change < verdict.interval[1] < 0


def test_a_loss_that_is_never_worth_a_failure_passes() -> None:
    strict, lax = Policy(min_effect=0.001), Policy(min_effect=0.04)
    for policy, outcome in ((strict, Outcome.REGRESSED), (lax, Outcome.SAME)):
        judge = judge_of(STEADY, policy=policy)
        suspect = judge.screen(TEST, "busbw", Metric(90.0, "B/s", "higher"), "body-1")
        figures = [Metric(value, "B/s", "higher") for value in [97.0] * 5]
        assert judge.confirm(suspect, figures).outcome is outcome


def test_checks_share_the_chance_of_a_false_alarm() -> None:
    few, many = judge_of(LOOSER), judge_of(LOOSER, tests=100)
    assert many.rule.checks == 100
    assert few.rule.alpha == pytest.approx(100 * many.rule.alpha)
    suspect = few.screen(TEST, "busbw", Metric(90.0, "B/s", "higher"), "body-1")
    more, fewer = many.launches(suspect), few.launches(suspect)
    assert fewer is not None
    assert more is None or more > fewer


def test_a_run_that_moved_as_a_whole_is_told_by_its_median() -> None:
    judge = judge_of(STEADY, tests=12)
    for index in range(11):
        judge.screen(f"test_{index}", "busbw", Metric(97.0, "B/s", "higher"), "body-1")
    shift = judge.shift
    assert shift == pytest.approx(1 / 0.97 - 1)
    for index in range(6):
        judge.screen(f"test_{index}", "busbw", Metric(100.0, "B/s", "higher"), "body-1")
    assert judge.shift is None  # five of eleven are five regressions


MATMUL, ALL_REDUCE = "sustained matmul on 2 ranks", "all_reduce on 2 ranks"
VERSIONS = {"nccl": "2.28.9", "torch": "2.13.0"}  # of all launches in examples.py
SECONDS = [1e-3 * (1 + 1e-4 * (i - 4.5)) for i in range(10)]


def controlled(
    before: Sequence[float],
    *now: float,
    name: str = MATMUL,
    at_limit: bool = True,
    gpus: Sequence[str] = (),
    here: str = "",
    figures: Sequence[float] = (),
    software: Mapping[str, str] = VERSIONS,
    unit: str = "B/s",
) -> Judge:
    """A judge of a baseline whose launches took so many seconds for the product, and a run that takes now.

    Args:
        before: of the first launches; the others did not measure it.
        now: of this run's launches.
        name: what this run measures.
        at_limit: whether at the power limit.
        gpus: of the baseline's launches.
        here: the GPUs of this run.
        figures: of the baseline's launches.
        software: of this run.
        unit: of the figures.
    """
    stored = figures or [100.0 * (1 + 1e-4 * (i - 4.5)) for i in range(10)]
    known = baselines(*stored)
    launches = dict(known.launches)
    for launch, seconds in zip(known.launches, before, strict=False):
        launches[launch] = replace(launches[launch], control={MATMUL: seconds})
    for launch, where in zip(known.launches, gpus, strict=False):
        launches[launch] = replace(launches[launch], gpus=where)
    entry = TestBaseline("body-1", {"busbw": metric_baseline(*stored, unit=unit)})
    judge = Judge(KEY, replace(known, launches=launches, tests={TEST: entry}), [TEST], Policy(), gpus=here)
    for seconds in now:
        judge.controls.add(2, {name: Control(seconds, at_limit)}, software)
    return judge


@pytest.mark.parametrize(
    ("before", "now", "moved"),
    [
        (SECONDS, [1.01e-3], None),
        (SECONDS, [1.04e-3], 0.04),
        (SECONDS, [0.96e-3], -0.04),
        (SECONDS, [1.00e-3, 1.04e-3, 1.00e-3], None),  # the median of all launches
        (SECONDS, [1.00e-3, 1.04e-3, 1.04e-3], 0.04),
        (SECONDS[:1], [2e-3], None),  # one launch has no spread that would tell
        ([1e-3, 2e-3] * 5, [1.04e-3], None),  # half of it is noise
        ([], [2e-3], None),
        (SECONDS, [], None),
    ],
)
def test_a_control_workload_that_moved_is_told(before: list[float], now: list[float], moved: float | None) -> None:
    expected = {} if moved is None else {MATMUL: pytest.approx(moved, abs=1e-3)}
    assert controlled(before, *now).moved == expected


def test_another_control_workload_tells_nothing() -> None:
    assert controlled(SECONDS, 2e-3, name="sort").moved == {}


def test_a_control_workload_of_several_machines_moved_by_what_one_machines_launches_do_not() -> None:
    before, now = [1e-3, 1.04e-3] * 5, 1.0608e-3
    assert controlled(before, now).moved == {}  # of one machine, that scatters so
    two = controlled(before, now, gpus=["a", "b"] * 5)
    assert two.moved == {MATMUL: pytest.approx(0.04, abs=1e-3)}
    each = controlled(before, now, gpus="abcdefghij")
    assert each.moved == {}  # of none is it known how it scatters: they may all be one


def test_the_control_workloads_spread_is_its_own() -> None:
    noisy = controlled(SECONDS, 1.03e-3, figures=[100.0, 300.0] * 5)
    assert noisy.moved == controlled(SECONDS, 1.03e-3).moved != {}


def regression(judge: Judge, value: float) -> Verdict:
    """What fresh launches make of a figure of 70."""
    unit = judge._tests[TEST].metrics["busbw"].unit
    suspect = judge.screen(TEST, "busbw", Metric(70.0, unit, "higher"), "body-1")
    assert suspect.outcome is Outcome.SUSPECT
    verdict = judge.confirm(suspect, [Metric(value, unit, "higher")] * 5)
    assert verdict.outcome is Outcome.REGRESSED
    return verdict


def explained(judge: Judge, value: float, *, at_limit: bool = True, ranks: int = 2) -> tuple[float, bool] | None:
    """By how much slower a control workload a figure is explained, and whether by the GPUs alone."""
    found = judge.explained(regression(judge, value), ranks, at_limit=at_limit)
    if found is None:
        return None
    assert found.outcome is Outcome.SHIFTED
    assert found.control is not None
    return round(found.control, 2), found.of_the_gpus


@pytest.mark.parametrize(
    ("now", "value", "slower"),
    [
        (1.04e-3, 93.0, 0.04),  # 7.3 %; 1.5 times 3.9, and 1.5 for chance
        (1.04e-3, 92.9, 0.04),
        (1.04e-3, 92.8, None),  # 7.5 % are more than it explains
        (1.00e-3, 93.0, None),
        (0.96e-3, 93.0, None),  # a faster machine explains no loss
    ],
)
def test_a_loss_that_the_control_workload_shares_is_the_machines(
    now: float, value: float, slower: float | None
) -> None:
    judge = controlled(SECONDS, now)
    assert explained(judge, value) == (None if slower is None else (slower, True))
    assert explained(judge, value, ranks=4) is None


def test_a_part_at_the_power_limit_explains_only_figures_there_and_other_parts_only_the_others() -> None:
    judge = controlled(SECONDS, 1.04e-3)
    assert explained(judge, 95.0, at_limit=True) == (0.04, True)
    assert explained(judge, 95.0, at_limit=False) is None
    judge = controlled(SECONDS, 1.04e-3, at_limit=False)
    assert explained(judge, 95.0, at_limit=True) is None
    assert explained(judge, 95.0, at_limit=False) == (0.04, False)  # no matter of the GPUs alone


def test_of_several_parts_one_that_got_slower_is_enough() -> None:
    for first, second in ((1.00e-3, 1.04e-3), (1.04e-3, 1.00e-3)):
        judge = controlled(SECONDS, first)
        launches = {id_: replace(info, control={**info.control, "more": 1e-3}) for id_, info in judge._launches.items()}
        judge.controls._launches = launches
        judge.controls.add(2, {"more": Control(second, True)}, VERSIONS)
        assert explained(judge, 95.0) == (0.04, True)


@pytest.mark.parametrize(
    ("unit", "is_explained"), [("B/s", True), ("FLOP/s", True), ("s", True), ("B", False), ("x", False)]
)
def test_a_slower_machine_moves_no_more_bytes(unit: str, is_explained: bool) -> None:
    assert (explained(controlled(SECONDS, 1.04e-3, unit=unit), 95.0) is not None) is is_explained


def test_only_the_launches_of_the_figures_own_baseline_explain_its_loss() -> None:
    judge = controlled([2e-3] * 10, 2e-3)  # slow then as now
    others = {f"other-{i}": replace(info, control={MATMUL: 1e-3}) for i, info in enumerate(judge._launches.values())}
    judge.controls._launches = {**judge._launches, **others, **{f"{name}-more": info for name, info in others.items()}}
    assert explained(judge, 93.0) is None


def test_a_baseline_of_several_machines_is_compared_by_the_launches_that_have_the_control_workload() -> None:
    # ln(97 / 83.5) is 15 %, of which 1.5 ln 1.1 and 1.5 % are 15.8; ln(100 / 83.5) is 18 %.
    judge = controlled(SECONDS[:4], 1.1e-3, figures=[97.0] * 4 + [100.0] * 6)
    assert explained(judge, 83.5) == (0.1, True)
    assert explained(judge, 82.5) is None


def test_few_launches_leave_more_to_chance() -> None:
    scattered = [100.0, 103.0, 97.0, 101.5, 98.5] * 2
    of_five, of_ten = (controlled(SECONDS[:count], 1.04e-3, figures=scattered) for count in (5, 10))
    known = [History.of([-math.log(figure) for figure in scattered[:count]]) for count in (5, 10)]
    five, ten = (judge.rule.alarm(history, 5) for judge, history in zip((of_five, of_ten), known, strict=True))
    between = 100 * math.exp(-1.5 * math.log(1.04) - (five + ten) / 2)
    assert five > ten
    assert explained(of_five, between) == (0.04, True)
    assert explained(of_ten, between) is None


def test_with_other_software_the_gpus_alone_explain_nothing() -> None:
    other = {**VERSIONS, "NCCL_PROTO": "LL"}
    assert explained(controlled(SECONDS, 1.04e-3, software=other), 95.0) == (0.04, False)


def test_launches_with_the_same_software_are_what_counts_where_there_are_any() -> None:
    judge = controlled([1e-3] * 8 + [1.04e-3] * 2, 1.04e-3, software={"torch": "2.14.0"})
    assert explained(judge, 95.0) == (0.04, False)
    launches = dict(judge._launches)
    for id_ in list(launches)[8:]:
        launches[id_] = replace(launches[id_], environment={"torch": "2.14.0"})
    judge.controls._launches = launches
    assert explained(judge, 95.0) is None  # as slow as it was with this software


def test_launches_on_the_same_gpus_are_what_counts_where_there_are_any() -> None:
    mixed = controlled([1e-3] * 7 + [1.04e-3] * 3, 1.04e-3, gpus=["a"] * 7 + ["b"] * 3)
    assert explained(mixed, 95.0) == (0.04, True)
    judge = controlled([1e-3] * 7 + [1.04e-3] * 3, 1.04e-3, gpus=["a"] * 7 + ["b"] * 3, here="b")
    assert explained(judge, 95.0) is None  # these GPUs are as fast as ever
    once = controlled([1e-3] * 9 + [1.04e-3], 1.04e-3, gpus=["a"] * 9 + ["b"], here="b")
    assert explained(once, 95.0) == (0.04, True)  # of one launch it is not known whether they are


def test_a_loss_that_is_expected_is_explained_from_where_it_was_expected() -> None:
    judge = controlled(SECONDS, 1.06e-3)
    verdict = regression(judge, 100 * math.exp(-0.16))  # 10 % are expected, 6 % are the machine's
    assert judge.explained(verdict, 2, at_limit=True) is None
    assert judge.explained(verdict, 2, at_limit=True, center=90.5) is not None


def test_five_launches_on_these_very_gpus_are_the_baseline() -> None:
    stored = [100.0 + 0.01 * i for i in range(10)] + [95.0 + 0.01 * i for i in range(5)]
    here, there = (controlled([], gpus=["a"] * 10 + ["b"] * 5, figures=stored, here=gpus) for gpus in "bc")
    slow = Metric(95.0, "B/s", "higher")
    found = here.screen(TEST, "busbw", slow, "body-1")
    assert found.outcome is Outcome.SAME
    assert found.baseline is not None
    assert (len(found.baseline.launches), found.elsewhere) == (5, False)
    assert there.screen(TEST, "busbw", slow, "body-1").outcome is Outcome.SUSPECT
    few = controlled([], gpus=["a"] * 10 + ["b"] * 4 + ["c"], figures=stored, here="b")
    assert few.screen(TEST, "busbw", slow, "body-1").outcome is Outcome.SUSPECT
    for gpus in ([], ["a"] * 10):  # of some launches, and of this run, it is not known
        unknown = controlled([], gpus=gpus, figures=stored)
        assert len((unknown.screen(TEST, "busbw", slow, "body-1").baseline or STEADY).launches) == 15


def test_figures_at_the_power_limit_of_slower_gpus_make_no_shift_of_the_whole_run() -> None:
    def of(seconds: float, *, at_limit: bool, part_at_limit: bool = True) -> float | None:
        judge = judge_of(STEADY, tests=12)
        infos = judge._launches.items()
        judge.controls._launches = {id_: replace(info, control={MATMUL: 1e-3}) for id_, info in infos}
        judge.controls.add(2, {MATMUL: Control(seconds, part_at_limit)}, VERSIONS)
        for index in range(12):
            figure = Metric(95.0, "B/s", "higher", power_capped=at_limit)
            judge.screen(f"test_{index}", "busbw", figure, "body-1")
        return judge.shift

    assert of(1.05e-3, at_limit=True) is None
    assert of(1.00e-3, at_limit=True) == pytest.approx(1 / 0.95 - 1)
    assert of(1.05e-3, at_limit=False) == pytest.approx(1 / 0.95 - 1)
    assert of(0.95e-3, at_limit=True) == pytest.approx(1 / 0.95 - 1)
    assert of(1.05e-3, at_limit=True, part_at_limit=False) == pytest.approx(1 / 0.95 - 1)


@pytest.mark.parametrize(
    ("recorded", "gpus", "elsewhere"),
    [
        (["a", "b"], "c", True),
        (["a", "c"], "c", False),
        (["a", ""], "c", False),  # of one it is not known
        (["a", "b"], "", False),
    ],
)
def test_a_baseline_that_was_recorded_on_other_gpus_is_told(recorded: list[str], gpus: str, elsewhere: bool) -> None:
    known = baselines(*[100.0] * 10)
    infos = zip(known.launches.items(), recorded * 5, strict=True)
    known = replace(known, launches={id_: replace(info, gpus=where) for (id_, info), where in infos})
    judge = Judge(KEY, known, [TEST], Policy(), gpus=gpus)
    suspect = judge.screen(TEST, "busbw", Metric(90.0, "B/s", "higher"), "body-1")
    assert suspect.elsewhere is elsewhere
    assert judge.confirm(suspect, [suspect.metric] * 5).elsewhere is elsewhere


def test_verdicts_of_earlier_results_are_read() -> None:
    verdict = verdict_of(95.0)
    data = verdict.to_json()
    assert Verdict.from_json(data) == verdict
    del data["of_the_gpus"], data["elsewhere"]
    assert Verdict.from_json(data) == verdict
    told = replace(verdict, of_the_gpus=True, elsewhere=True)
    assert Verdict.from_json(told.to_json()) == told


def test_parts_of_the_control_workload_share_the_chance_of_a_false_alarm() -> None:
    scattered = [1e-3 * (1 + 5e-3 * (i - 4.5)) for i in range(10)]
    alone, one_of_many = controlled(scattered, 1.12e-3), controlled(scattered, 1.12e-3)
    more = {f"part {index}": 1e-3 for index in range(100)}
    infos = one_of_many._launches.items()
    launches = {
        id_: replace(info, control={**info.control, **dict.fromkeys(more, info.control[MATMUL])}) for id_, info in infos
    }
    one_of_many.controls._launches = launches
    one_of_many.controls.add(4, {name: Control(1e-3, True) for name in more}, VERSIONS)
    assert MATMUL in alone.moved
    assert MATMUL not in one_of_many.moved


def test_few_figures_tell_no_shift() -> None:
    judge = judge_of(STEADY, tests=4)
    for index in range(3):
        judge.screen(f"test_{index}", "busbw", Metric(80.0, "B/s", "higher"), "body-1")
    assert judge.shift is None


def test_what_a_test_asks_for_comes_before_its_baseline() -> None:
    for stored in (STEADY, None):
        asked = {"unit": "x", "at_least": 1.2}
        assert verdict_of(1.1, stored, interval=(1.05, 1.15), **asked).outcome is Outcome.MISSED
        assert verdict_of(1.2, stored, interval=(1.1, 1.3), **asked).outcome is Outcome.DOUBTFUL
    met = metric_baseline(*[1.3] * 10, unit="x")
    assert verdict_of(1.3, met, interval=(1.25, 1.35), **asked).outcome is Outcome.SAME


def test_above_the_limit_is_broken_whatever_the_baseline() -> None:
    for stored in (STEADY, None):
        assert verdict_of(100.0, stored, limit=90.0).outcome is Outcome.BROKEN
    assert verdict_of(100.0, STEADY, limit=90.0, body="body-2").outcome is Outcome.BROKEN


def test_no_baseline_is_missing() -> None:
    verdict = verdict_of(100.0, None)
    assert (verdict.outcome, verdict.baseline, verdict.change) == (Outcome.MISSING, None, None)


def test_a_baseline_of_other_metrics_is_missing() -> None:
    verdict = judge_of(STEADY).screen(TEST, "time", Metric(100.0, "B/s", "higher"), "body-1")
    assert verdict.outcome is Outcome.MISSING


@pytest.mark.parametrize(
    "fields",
    [{"body": "body-2"}, {"unit": "s"}, {"better": "lower"}, {"clock": "cuda_graph"}],
)
def test_a_baseline_of_something_else_is_stale(fields: dict[str, Any]) -> None:
    verdict = verdict_of(100.0, **fields)
    assert (verdict.outcome, verdict.baseline, verdict.change) == (Outcome.STALE, STEADY, None)


def test_an_unnamed_clock_is_any_clock() -> None:
    assert verdict_of(100.0, clock="").outcome is Outcome.SAME
    assert verdict_of(100.0, replace(STEADY, clock=""), clock="cuda_graph").outcome is Outcome.SAME


@pytest.mark.parametrize(
    "verdict",
    [
        verdict_of(80.0),
        verdict_of(80.0, None),
        verdict_of(80.0, LOOSE, q1=79.0),
        confirmed(STEADY, 90.0, 91.0, 92.0, 91.0, 91.0),
    ],
)
def test_json_and_back(verdict: Verdict) -> None:
    assert Verdict.from_json(json.loads(json.dumps(verdict.to_json()))) == verdict


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"outcome": "fine"},
            r"verdict\.outcome: got 'fine', expected one of 'same', 'improved', 'regressed'",
        ),
        ({"test": None}, r"verdict\.test: got None, expected a string"),
        ({"metric": 1}, r"verdict\.metric: got 1, expected an object"),
        ({"baseline": []}, r"verdict\.baseline: got \[\], expected an object"),
        ({"change": "+"}, r"verdict\.change: got '\+', expected a finite number"),
        ({"why": "x"}, r"verdict: got 'why', expected no keys but test, metric_name"),
    ],
)
def test_json_that_is_no_verdict_is_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(FieldError, match=message):
        Verdict.from_json({**verdict_of(80.0).to_json(), **change})
