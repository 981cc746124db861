"""What is to be found of one metric, as a reviewer writes it beside a baseline."""

from dataclasses import replace
from typing import Any

import pytest

from pytest_gpuperf.baselines.merge import Mode, Stamp, UpdatePolicy, merge
from pytest_gpuperf.baselines.reviewed import MetricPolicy
from pytest_gpuperf.baselines.schema import BaselineError, Baselines, TestBaseline
from pytest_gpuperf.figures.metric import Metric
from pytest_gpuperf.verdicts.controls import Control
from pytest_gpuperf.verdicts.judge import Judge
from pytest_gpuperf.verdicts.outcome import Outcome
from pytest_gpuperf.verdicts.rule import Policy
from pytest_gpuperf.verdicts.verdict import Verdict
from tests.baselines.examples import KEY, TEST, baselines, metric_baseline

NOISY = "launches differ by 5 % at this size"
LOOSE = MetricPolicy(NOISY, detect=0.2)
QUIET = [100.0 * (1 + 1e-4 * (i - 4.5)) for i in range(10)]
STAMP = Stamp("2026-11-22T10:00:00Z", "abc124", "Ada <ada@example.org>", "again")


def read(policy: object) -> Baselines:
    data: Any = baselines().to_json()
    data["tests"][TEST]["policy"] = policy
    return Baselines.from_json(data, "x.json", KEY)


def judge_of(bounds: MetricPolicy | None, *figures: float, policy: Policy | None = None) -> Judge:
    """A judge of two metrics with these figures, one with bounds of its own."""
    metric = metric_baseline(*(figures or QUIET))
    entry = TestBaseline("body-1", {"busbw": metric, "other": metric}, policy={"busbw": bounds} if bounds else {})
    known = replace(baselines(*(figures or QUIET)), tests={TEST: entry})
    return Judge(KEY, known, [TEST], policy or Policy())


def screened(judge: Judge, value: float, name: str = "busbw") -> Verdict:
    return judge.screen(TEST, name, Metric(value, "B/s", "higher"), "body-1")


@pytest.mark.parametrize("written", [{"detect": 0.2}, {"min_effect": 0.02}, {"detect": 0.2, "min_effect": 0.1}])
def test_what_a_reviewer_writes_is_read_and_written_again(written: dict[str, float]) -> None:
    read_ = read({"busbw": {"reason": NOISY, **written}})
    assert read_.tests[TEST].policy == {"busbw": MetricPolicy(NOISY, **written)}
    assert Baselines.from_json(read_.to_json(), "x.json", KEY) == read_


@pytest.mark.parametrize(
    ("policy", "problem"),
    [
        ([], ".policy: got [], expected an object: "),
        (
            {"latency": {"detect": 0.1, "reason": "x"}},
            ".policy: got 'latency', expected a metric of the test, one of 'busbw': ",
        ),
        ({"busbw": 0.1}, ".policy.busbw: got 0.1, expected an object: "),
        ({"busbw": {"detect": 0.1}}, ".policy.busbw: got ['detect'], expected a key 'reason': "),
        ({"busbw": {"detect": 0.1, "reason": " "}}, ".reason: got ' ', expected why the run's policy does not fit: "),
        ({"busbw": {"detect": -0.1, "reason": "x"}}, ".detect: got -0.1, expected a number above 0: "),
        ({"busbw": {"detect": "5 %", "reason": "x"}}, ".detect: got '5 %', expected a finite number: "),
        ({"busbw": {"detect": 20, "reason": "x"}}, ".detect: got 20.0, expected a fraction below 1, 0.15 for 15 %: "),
        ({"busbw": {"min_effect": 1, "reason": "x"}}, ".min_effect: got 1.0, expected a fraction below 1, 0.15 for"),
        ({"busbw": {"reason": "x"}}, ".policy.busbw: got ['reason'], expected detect, min_effect or both: "),
        ({"busbw": {"alpha": 0.1, "reason": "x"}}, ".busbw: got 'alpha', expected no keys but reason, detect, min_ef"),
    ],
)
def test_another_policy_is_refused_with_its_place_and_how_it_is_written(policy: object, problem: str) -> None:
    with pytest.raises(BaselineError) as caught:
        read(policy)
    assert str(caught.value).startswith(f"baselines 'x.json': file.tests[{TEST!r}].policy")
    assert problem in str(caught.value)
    assert 'write for example "policy": {"busbw": {"detect": 0.15, ' in caught.value.cure


def test_a_metric_is_screened_by_its_own_bounds() -> None:
    judge = judge_of(LOOSE)
    assert screened(judge, 95.0).outcome is Outcome.SAME
    assert screened(judge, 95.0, "other").outcome is Outcome.SUSPECT
    assert screened(judge, 83.0).outcome is Outcome.SUSPECT


def test_what_it_lets_pass_is_its_bound() -> None:
    verdict = screened(judge_of(LOOSE), 95.0)
    assert (verdict.bound, verdict.policy) == (0.2, LOOSE)
    other = screened(judge_of(LOOSE), 100.0, "other")
    assert other.bound is not None
    assert (other.bound < 0.05, other.policy) == (True, None)


def test_where_its_launches_tell_less_than_it_asks_for_that_is_the_bound() -> None:
    bound = screened(judge_of(MetricPolicy(NOISY, detect=0.105, min_effect=0.1)), 100.0).bound
    assert bound is not None
    assert 0.105 < bound < 0.12


def test_a_gain_is_told_by_its_own_bounds() -> None:
    assert screened(judge_of(MetricPolicy("matters", detect=0.025)), 104.0).outcome is Outcome.IMPROVED
    assert screened(judge_of(None), 104.0).outcome is Outcome.SAME


def test_a_smaller_slowdown_may_be_asked_for_too() -> None:
    assert screened(judge_of(None), 98.0).outcome is Outcome.SAME
    assert screened(judge_of(MetricPolicy("matters", detect=0.025)), 98.0).outcome is Outcome.SUSPECT


def test_fresh_launches_decide_by_its_own_bounds() -> None:
    judge = judge_of(MetricPolicy(NOISY, detect=0.2, min_effect=0.1))
    fresh = [Metric(92.0, "B/s", "higher")] * 5
    assert judge.confirm(screened(judge, 80.0), fresh).outcome is Outcome.SAME
    assert judge.confirm(screened(judge, 80.0, "other"), fresh).outcome is Outcome.REGRESSED


def test_what_cannot_be_decided_can_be_once_less_is_asked_for() -> None:
    noisy = [100.0 * (1 + 0.012 * (i - 4.5)) for i in range(10)]
    suspect = screened(judge_of(None, *noisy), 90.0)
    assert suspect.outcome is Outcome.SUSPECT
    assert judge_of(None, *noisy).launches(suspect) == 25
    judge = judge_of(LOOSE, *noisy)
    suspect = screened(judge, 80.0)
    assert judge.launches(suspect) < 25
    undecided = judge.confirm(suspect, [])
    assert undecided.needed is not None
    assert undecided.needed < 10
    assert judge_of(None, *noisy).confirm(suspect, []).needed == 312


def test_what_fresh_launches_could_have_seen_is_by_its_own_bounds() -> None:
    judge = judge_of(MetricPolicy(NOISY, detect=0.2, min_effect=0.1))
    for fresh in ([], [Metric(92.0, "B/s", "higher")] * 5):
        bounds = [judge.confirm(screened(judge, 70.0, name), fresh).bound for name in ("busbw", "other")]
        assert bounds[0] is not None
        assert bounds[1] is not None
        assert bounds[1] < 0.05 < 0.1 < bounds[0]


def test_a_loss_that_the_control_workload_explains_is_so_by_its_own_bounds() -> None:
    judge = judge_of(MetricPolicy(NOISY, detect=0.2, min_effect=0.1))
    launches = {id_: replace(info, control={"product": 1e-3}) for id_, info in judge._launches.items()}
    judge._launches = judge.controls._launches = launches
    judge.controls.add(2, {"product": Control(1.04e-3, False)}, {})
    fresh = [Metric(86.0, "B/s", "higher")] * 5
    for name, explained in (("busbw", True), ("other", False)):
        regressed = judge.confirm(screened(judge, 70.0, name), fresh)
        assert regressed.outcome is Outcome.REGRESSED
        assert (judge.explained(regressed, 2, at_limit=False) is not None) is explained


def test_bounds_that_decide_nothing_with_the_runs_are_refused() -> None:
    with pytest.raises(
        ValueError, match=r"^policy of .*test_all_reduce\[8ranks-1GiB\] busbw: policy detect is 0\.01, "
    ):
        judge_of(MetricPolicy("matters", detect=0.01))
    judge_of(MetricPolicy("matters", detect=0.01, min_effect=0.001), policy=Policy(floor=0.001))


@pytest.mark.parametrize("mode", [Mode.ALL, Mode.MOVED, Mode.APPEND])
def test_an_update_keeps_it(mode: Mode) -> None:
    stored = replace(baselines(*QUIET), tests={TEST: replace(baselines(*QUIET).tests[TEST], policy={"busbw": LOOSE})})
    figures = [102.0 * one / 100.0 for one in QUIET]
    new = replace(
        baselines(*figures),
        launches={f"new-{id_}": info for id_, info in baselines(*figures).launches.items()},
        tests={TEST: renamed(baselines(*figures).tests[TEST])},
    )
    merged = merge(stored, new, UpdatePolicy(mode), STAMP)
    assert merged.written == (TEST,)
    assert merged.baselines.tests[TEST].policy == {"busbw": LOOSE}


@pytest.mark.parametrize(
    ("bounds", "value", "written"),
    [
        (None, 0.96, True),
        (MetricPolicy("matters", detect=0.025), 0.96, False),
        (None, 0.92, False),
        (LOOSE, 0.92, True),
        (MetricPolicy("matters", min_effect=0.02), 0.96, True),  # what is to be found is the run's
    ],
)
def test_an_update_takes_a_loss_by_its_own_bounds(bounds: MetricPolicy | None, value: float, written: bool) -> None:
    entry = replace(baselines(*QUIET).tests[TEST], policy={"busbw": bounds} if bounds else {})
    stored = replace(baselines(*QUIET), tests={TEST: entry})
    merged = merge(stored, baselines(*[value * one for one in QUIET]), UpdatePolicy(Mode.MOVED), STAMP)
    assert bool(merged.written) is written
    assert bool(merged.refused) is not written


def renamed(entry: TestBaseline) -> TestBaseline:
    metric = entry.metrics["busbw"]
    launches = tuple(replace(figure, launch=f"new-{figure.launch}") for figure in metric.launches)
    return replace(entry, metrics={"busbw": replace(metric, launches=launches)})


def test_it_goes_with_a_stale_entry() -> None:
    old = replace(baselines(*QUIET).tests[TEST], policy={"busbw": LOOSE}, body_hash="body-0")
    stored = replace(baselines(*QUIET), tests={TEST: old})
    merged = merge(stored, baselines(*QUIET), UpdatePolicy(Mode.MOVED), STAMP)
    assert merged.written == (TEST,)
    assert merged.baselines.tests[TEST].policy == {}
    assert merged.dropped == {TEST: ("policy",)}
    again = replace(old, policy={})
    assert not merge(replace(stored, tests={TEST: again}), baselines(*QUIET), UpdatePolicy(Mode.MOVED), STAMP).dropped
