"""What of a loss the control workload explains, and when it moved."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from pytest_gpuperf.baselines.schema import TestBaseline
from pytest_gpuperf.figures.metric import Metric
from pytest_gpuperf.verdicts.controls import Control
from pytest_gpuperf.verdicts.history import History
from pytest_gpuperf.verdicts.judge import Judge
from pytest_gpuperf.verdicts.outcome import Outcome
from pytest_gpuperf.verdicts.rule import Policy
from pytest_gpuperf.verdicts.verdict import Verdict
from tests.baselines.examples import KEY, TEST, baselines, metric_baseline
from tests.verdicts.judged import STEADY, judge_of

MATMUL = "sustained matmul on 2 ranks"
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
    ("unit", "is_explained"),
    [("B/s", True), ("FLOP/s", True), ("s", True), ("B", False), ("x", False), ("tokens", False)],
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
    judge = controlled(SECONDS[:4], 1.1e-3, figures=[97.0] * 4 + [100.0] * 36)
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
    here = controlled(SECONDS, 1.04e-3, gpus="b" * 10, here="b", software=other)
    assert explained(here, 95.0) == (0.04, False)  # nor do these very GPUs


def test_launches_with_the_same_software_are_what_counts_where_there_are_any() -> None:
    judge = controlled([1e-3] * 18 + [1.04e-3] * 2, 1.04e-3, figures=[100.0] * 20, software={"torch": "2.14.0"})
    assert explained(judge, 95.0) == (0.04, False)
    launches = dict(judge._launches)
    for id_ in list(launches)[18:]:
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
