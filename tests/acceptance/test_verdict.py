"""The rules that make a verdict of figures, tests and findings."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pytest_gpuperf.features.acceptance.lines import format_lines, format_title
from pytest_gpuperf.features.acceptance.verdict import Acceptance, Fitness, Row, Seen, State, judge_acceptance
from pytest_gpuperf.features.doctor.finding import make_critical, make_info, make_unknown, make_warning
from pytest_gpuperf.figures.metric import Metric
from pytest_gpuperf.verdicts.opinion import Opinion, Saying
from pytest_gpuperf.verdicts.outcome import Outcome, Reason
from tests.acceptance.examples import (
    FEW_CORES,
    NUMBERS,
    P2P,
    SOAK,
    USUAL,
    WELL,
    figure,
    judged,
    node_id,
    ran,
    recorded,
    row_of,
    unfit,
)

SLIGHTLY, FAR = 0.92 * USUAL, 0.8 * USUAL  # 5 % less is plausible


def test_a_machine_that_is_well_is_fit() -> None:
    acceptance = judged()
    assert acceptance.fitness is Fitness.FIT
    assert acceptance.bad == []
    assert {row.component: row.state for row in acceptance.rows if row.state is not State.OK} == {
        "network": State.NOT_JUDGED
    }
    assert row_of(acceptance, "collectives").what == (
        "broadcast[2ranks] busbw 360.0 GB/s; 1 metric: 9 launches on 4 machines of this kind; a loss of 6.4 % is seen"
    )


def test_components_come_in_the_order_in_which_they_rest_on_one_another_and_numbers_last() -> None:
    names = [row.component for row in judged(figure("step[2ranks]", subject="llm_step")).rows]
    assert names == [
        "matrix units, power, clocks",
        "GPU memory",
        "host",
        "PCIe",
        "links between GPUs",
        "collectives",
        "network",
        "llm step",
        "numbers",
    ]


def test_figures_of_two_tests_that_are_slightly_below_make_a_component_slow() -> None:
    acceptance = judged(figure(value=SLIGHTLY), figure("all_gather[2ranks]", value=0.93 * USUAL))
    assert row_of(acceptance, "collectives").state is State.SLOW
    assert acceptance.fitness is Fitness.UNFIT
    what = row_of(acceptance, "collectives").what
    assert what == (
        "all_reduce[2ranks] busbw 331.2 GB/s, usually 360.0 GB/s: 8.0 % worse; 2 of 3 metrics; "
        "9 launches on 4 machines of this kind"
    )


@pytest.mark.parametrize("names", [["busbw"], ["busbw", "peak"]], ids=["one metric", "two metrics"])
def test_one_test_that_is_slightly_below_is_a_remark(names: list[str]) -> None:
    acceptance = judged(*(figure(value=SLIGHTLY, name=name) for name in names))
    assert row_of(acceptance, "collectives").state is State.OK
    assert acceptance.fitness is Fitness.REMARKS
    assert format_title(acceptance) == "fit, with remarks"
    assert list(acceptance.remarks) == [
        f"collectives: all_reduce[2ranks] {name} 331.2 GB/s, usually 360.0 GB/s, alone among its metrics"
        for name in names
    ]


def test_one_test_that_is_far_below_makes_a_component_slow() -> None:
    acceptance = judged(figure(value=FAR))
    assert row_of(acceptance, "collectives").state is State.SLOW
    assert "20.0 % worse" in row_of(acceptance, "collectives").what


def test_how_far_is_far_depends_on_the_plausible_end() -> None:
    """The plausible end is 20 % below what is usual: a loss of 30 % is less than twice that."""
    slack = figure(value=0.7 * USUAL)
    assert slack.opinion is not None
    slack = replace(slack, opinion=replace(slack.opinion, low=0.8 * USUAL))
    assert row_of(judged(slack), "collectives").state is State.OK
    assert row_of(judged(replace(slack, metric=replace(slack.metric, value=0.6 * USUAL))), "collectives").state is (
        State.SLOW
    )


def test_a_time_is_below_if_it_is_longer() -> None:
    opinion = Opinion(Saying.BELOW, high=1.05e-5, source="x", usual=1e-5, seen=0.06)
    metric = Metric(1.3e-5, "s", "lower")
    verdict = replace(figure(), metric_name="alpha", metric=metric, reason=Reason.BELOW, opinion=opinion)
    assert row_of(judged(verdict), "collectives").what.startswith(
        "all_reduce[2ranks] alpha 13.00 us, usually 10.00 us: 30.0 % worse"
    )


def test_the_only_figure_of_a_component_is_judged_also_if_it_is_slightly_below() -> None:
    acceptance = judged(figure("step[2ranks]", subject="llm_step", name="tokens", value=SLIGHTLY))
    assert row_of(acceptance, "llm step").state is State.OK
    assert "no baseline, reference or model" not in row_of(acceptance, "llm step").what
    assert len(acceptance.remarks) == 1


def test_a_figure_that_the_test_asks_more_of_makes_its_component_slow() -> None:
    metric = Metric(9e11, "FLOP/s", "higher", interval=(8.9e11, 9.1e11), at_least=1e12)
    missed = replace(figure("late[2ranks]", subject="host"), metric=metric, outcome=Outcome.MISSED, opinion=None)
    assert row_of(judged(missed), "host") == Row(
        "host",
        State.SLOW,
        "late[2ranks] busbw 900.0 GFLOP/s, asked for at least 1.000 TFLOP/s: 10.0 % worse; what the test asks for",
    )


@pytest.mark.parametrize("outcome", [Outcome.REGRESSED, Outcome.ENVIRONMENT])
def test_a_figure_that_is_worse_than_your_record_makes_its_component_slow(outcome: Outcome) -> None:
    acceptance = judged(recorded(outcome, 0.94 * USUAL))
    assert row_of(acceptance, "collectives").state is State.SLOW
    assert row_of(acceptance, "collectives").what == (
        "all_reduce[2ranks] busbw 338.4 GB/s, usually 360.0 GB/s: 6.0 % worse; your baseline of 2026-05-12"
    )


def test_a_figure_that_nothing_decided_is_a_remark() -> None:
    acceptance = judged(recorded(Outcome.UNDECIDED, 0.94 * USUAL, reason=Reason.OPEN))
    assert acceptance.fitness is Fitness.REMARKS
    assert row_of(acceptance, "collectives").state is State.OK
    assert "alone among its metrics" in acceptance.remarks[0]


def test_a_perf_test_that_fails_by_itself_breaks_its_component() -> None:
    failed = ran(node_id("collectives", "all_to_all[2ranks]"), "failed", "RankDied: rank 1 died of SIGSEGV")
    other = ran(node_id("collectives", "broadcast_of_all[2ranks]"), "failed", "late")
    acceptance = judged(tests=(failed, other))
    assert row_of(acceptance, "collectives") == Row(
        "collectives",
        State.BROKEN,
        "collectives::test_all_to_all[2ranks]: RankDied: rank 1 died of SIGSEGV; 1 more",
    )
    assert format_title(acceptance) == "unfit: collectives"


def test_a_broken_component_says_what_is_slow_too() -> None:
    failed = ran(node_id("collectives", "all_to_all[2ranks]"), "failed", "died")
    what = row_of(judged(figure(value=FAR), tests=(failed,)), "collectives").what
    assert what.startswith("collectives::test_all_to_all[2ranks]: died; all_reduce[2ranks] busbw 288.0 GB/s")


def test_a_perf_test_that_fails_by_its_figures_breaks_nothing() -> None:
    slow = figure(value=FAR)
    assert slow.fails
    acceptance = judged(slow, tests=(ran(slow.test, "failed", "busbw is below"),))
    assert row_of(acceptance, "collectives").state is State.SLOW


def test_a_test_of_correctness_that_fails_breaks_the_numbers() -> None:
    failed = ran(node_id("tensor_parallel", "same[2ranks]", "test_correctness.py"), "failed", "AssertionError: 1 != 2")
    acceptance = judged(tests=(failed,))
    assert row_of(acceptance, "numbers") == Row(
        "numbers", State.BROKEN, "tensor_parallel::test_same[2ranks]: AssertionError: 1 != 2; 1 test passed"
    )
    assert [row.component for row in acceptance.bad] == ["numbers"]


def test_wrong_results_of_a_soak_are_named_first() -> None:
    soak = ran(SOAK, "failed", "AssertionError: product 3 of 7 on rank 1 differs")
    other = ran(node_id("collectives", "sums_apart[2ranks]", "test_correctness.py"), "failed", "1 != 2")
    acceptance = judged(figure(value=FAR), tests=(other, soak))
    assert format_title(acceptance) == "unfit: numbers, collectives"
    assert row_of(acceptance, "numbers").what.startswith("health::test_nothing_is_corrupted[2ranks]: AssertionError")
    assert format_title(judged(figure(value=FAR), tests=(other,))) == "unfit: collectives, numbers"


def test_numbers_say_what_passed_and_what_a_soak_compared() -> None:
    soak = ran(SOAK, products=1)
    assert row_of(judged(tests=(soak,)), "numbers").what == (
        "2 tests passed; values right at full size in 6 perf tests"
    )
    soak = replace(soak, properties={"soak products": 39_000})
    assert row_of(judged(tests=(soak,)), "numbers").what.endswith(
        "; soak: 39 000 products right to the bit; a fault that corrupts 1 of 10^4 products is seen with 95 %"
    )


def test_without_tests_of_correctness_numbers_are_not_judged() -> None:
    acceptance = judge_acceptance(Seen(WELL, gpus=2))
    assert row_of(acceptance, "numbers") == Row("numbers", State.NOT_JUDGED, "no test of correctness ran")


def test_a_run_that_went_wrong_otherwise_breaks_the_numbers() -> None:
    acceptance = judged(failed="pytest did not start the tests of speed: ImportError")
    assert row_of(acceptance, "numbers").state is State.BROKEN
    assert acceptance.fitness is Fitness.UNFIT


def test_a_figure_that_is_below_on_an_unfit_gpu_makes_its_component_slow_and_says_why() -> None:
    row = row_of(judged(unfit(Saying.BELOW, FAR)), "collectives")
    assert row.state is State.SLOW
    assert "20.0 % worse; GPU GPU-1: 1 other process computed on it; 9 launches" in row.what


def test_a_plausible_figure_of_an_unfit_gpu_is_not_judged_and_says_why() -> None:
    lone = [one for one in WELL if "collectives" not in one.test]
    verdict = unfit(Saying.PLAUSIBLE, USUAL)
    acceptance = judge_acceptance(Seen((*lone, verdict), (ran(verdict.test, "failed", "unfit"), NUMBERS), gpus=2))
    assert row_of(acceptance, "collectives") == Row(
        "collectives", State.NOT_JUDGED, "GPU GPU-1: 1 other process computed on it"
    )
    assert list(acceptance.remarks) == ["collectives: not judged: GPU GPU-1: 1 other process computed on it"]


@pytest.mark.parametrize(
    "verdict",
    [
        unfit(Saying.PLAUSIBLE, USUAL),
        replace(figure(limit=300e9), outcome=Outcome.INVALID, reason=Reason.ABOVE_LIMIT),
        replace(figure(), reason=Reason.ABOVE_MODEL),
    ],
    ids=["unfit", "above the limit", "above the model"],
)
def test_a_failing_figure_that_is_not_below_is_a_remark(verdict: Any) -> None:
    assert verdict.fails
    acceptance = judged(verdict, tests=(ran(verdict.test, "failed", "figures"),))
    assert row_of(acceptance, "collectives").state is State.OK
    assert acceptance.fitness is Fitness.REMARKS
    (remark,) = acceptance.remarks
    assert remark.startswith("collectives: all_reduce[2ranks] busbw 360.0 GB/s")


def test_a_critical_finding_breaks_the_component_that_it_is_of() -> None:
    few = make_critical("nvlink", "GPU 1: 16 of 18 NVLinks are active", "slower", "reset GPU 1")
    acceptance = judged(findings=(few,))
    assert row_of(acceptance, "links between GPUs") == Row("links between GPUs", State.BROKEN, few.what, few.action)
    assert acceptance.remarks == []


def test_few_cores_make_the_host_slow_and_are_named_first() -> None:
    acceptance = judged(figure(value=FAR), findings=(FEW_CORES,))
    assert row_of(acceptance, "host") == Row("host", State.SLOW, FEW_CORES.what, FEW_CORES.action, decided=True)
    assert format_title(acceptance) == "unfit: host, collectives"
    assert acceptance.remarks == []


@pytest.mark.parametrize(
    ("check", "named"), [("pcie traffic", "PCIe"), ("foreign load", "matrix units, power, clocks"), ("governor", "")]
)
def test_what_a_finding_names_comes_before_what_it_rests_on(check: str, named: str) -> None:
    """Copies of another process slow the memory and the links, too."""
    memory = figure("tiers[2ranks]", subject="memory_hierarchy", name="read", value=FAR)
    found = make_warning(check, "GPU 1: another process", "they share", "wait")
    acceptance = judged(memory, findings=(found,))
    assert acceptance.bad[0].component == (named or "GPU memory")
    assert row_of(acceptance, "GPU memory").state is State.SLOW


def test_a_warning_is_a_remark() -> None:
    acceptance = judged(findings=(make_warning("governor", "the governor is powersave", "slower", "set it"),))
    assert acceptance.fitness is Fitness.REMARKS
    assert list(acceptance.remarks) == ["governor: the governor is powersave"]


def test_what_the_machine_hides_and_what_is_only_worth_knowing_is_no_remark() -> None:
    hidden = (make_unknown("xid", "the log is hidden", "", ""), make_info("host memory", "64 GiB"))
    assert judged(findings=hidden).fitness is Fitness.FIT


def test_a_finding_explains_a_slow_component_the_worst_finding_first() -> None:
    mild = make_warning("variable names", "NCCL_P2P_DISABEL is no variable", "no effect", "spell it")
    acceptance = judged(figure(value=FAR), findings=(mild, P2P))
    row = row_of(acceptance, "collectives")
    assert (row.state, row.because) == (State.SLOW, f"{P2P.what}; {P2P.action}")
    assert list(acceptance.remarks) == [f"variable names: {mild.what}"]
    told = " ".join(" ".join(format_lines(acceptance)).split())
    assert f"because: {P2P.what}; {P2P.action}" in told


def test_without_gpus_nothing_but_numbers_is_judged() -> None:
    acceptance = judge_acceptance(Seen((), (NUMBERS,), gpus=0))
    *machine, numbers = acceptance.rows
    assert {(row.state, row.what) for row in machine} == {(State.NOT_JUDGED, "no GPU in use")}
    assert numbers.state is State.OK
    assert acceptance.fitness is Fitness.NUMBERS
    assert list(acceptance.remarks) == ["no GPU is in use: only the numbers of some suites were checked, on CPUs"]


def test_figures_of_the_host_are_shown_and_not_judged() -> None:
    others = [one for one in WELL if "host" not in one.test]
    memory = figure("memory[2ranks]", subject="host", name="triad", value=5e11, saying=Saying.NONE, scope="host")
    acceptance = judge_acceptance(Seen((*others, memory), (NUMBERS,), gpus=2))
    assert row_of(acceptance, "host") == Row(
        "host", State.NOT_JUDGED, "it depends on the host: 1 metric shown, memory[2ranks] triad 500.0 GB/s"
    )


def test_a_component_without_figures_says_why_its_tests_did_not_run() -> None:
    others = [one for one in WELL if "nvlink" not in one.test]
    skipped = [
        ran(node_id("nvlink", f"{name}[8ranks]"), "skipped", reason)
        for name, reason in (("a", "rare"), ("b", "needs 8 GPUs"), ("c", "needs 8 GPUs"))
    ]
    row = row_of(judge_acceptance(Seen(others, (NUMBERS, *skipped), gpus=2)), "links between GPUs")
    assert (row.state, row.what) == (State.NOT_JUDGED, "needs 8 GPUs")
    nothing = row_of(judge_acceptance(Seen(others, (NUMBERS,), gpus=2)), "links between GPUs")
    assert nothing.what == "no test of it ran"


def test_a_network_without_a_device_is_no_remark() -> None:
    reason = "no RDMA device: /sys/class/infiniband is empty or absent"
    acceptance = judged(tests=(ran(node_id("network", "bandwidth[2ranks]"), "skipped", reason),))
    assert row_of(acceptance, "network") == Row("network", State.NOT_JUDGED, reason)
    assert acceptance.fitness is Fitness.FIT


def test_a_component_of_the_machine_that_nothing_judged_is_a_remark_and_a_step_is_none() -> None:
    step = figure("schedules[2ranks]", subject="pipeline_parallel", saying=Saying.NONE)
    assert judged(step).fitness is Fitness.FIT
    others = [one for one in WELL if "nvlink" not in one.test]
    acceptance = judge_acceptance(Seen(others, (NUMBERS,), gpus=2))
    assert list(acceptance.remarks) == ["links between GPUs: not judged: no test of it ran"]


@pytest.mark.parametrize(
    ("verdict", "source"),
    [
        (recorded(Outcome.SAME, USUAL), "your baseline of 2026-05-12"),
        (figure(), "9 launches on 4 machines of this kind"),
        (figure(source="", usual=None), "model: data sheets"),
        (figure(saying=Saying.NONE, interval=(3e11, 4e11), at_least=2e11), "what the test asks for"),
    ],
)
def test_a_row_says_what_its_figures_were_held_against(verdict: Any, source: str) -> None:
    others = [one for one in WELL if "collectives" not in one.test]
    row = row_of(judge_acceptance(Seen((*others, verdict), (NUMBERS,), gpus=2)), "collectives")
    assert row.state is State.OK
    assert f"; 1 metric: {source}" in row.what


def test_several_sources_are_counted_behind_the_most_frequent_one() -> None:
    acceptance = judged(figure(source="", usual=None), recorded(Outcome.SAME, USUAL), figure("x"))
    assert "; 4 metrics: 9 launches on 4 machines of this kind, and 2 more sources" in (
        row_of(acceptance, "collectives").what
    )


def test_a_figure_below_what_the_model_allows_says_so() -> None:
    what = row_of(judged(figure(value=FAR, source="", usual=None)), "collectives").what
    assert what == (
        "all_reduce[2ranks] busbw 288.0 GB/s, expected at least 342.0 GB/s: 15.8 % worse; model: data sheets"
    )


def test_the_gpu_that_is_slower_than_the_others_is_named() -> None:
    by_rank = (7e14, 5.6e14, 7.1e14, 7.2e14)
    verdict = figure("products[4ranks]", subject="health", value=FAR, scope="gpu", by_rank=by_rank)
    assert "(GPU 1; the others 710.0 TB/s)" in row_of(judged(verdict), "matrix units, power, clocks").what


@pytest.mark.parametrize(
    "metric",
    [
        {"scope": "gpus", "by_rank": (1e11, 2e11)},
        {"scope": "gpu", "by_rank": (2.0e11, 2.01e11)},
        {"scope": "gpu", "by_rank": (2e11,)},
    ],
    ids=["of all GPUs", "alike", "of one rank"],
)
def test_no_gpu_is_named_if_none_stands_out(metric: dict[str, Any]) -> None:
    verdict = figure("products[4ranks]", subject="health", value=FAR, **metric)
    assert "GPU" not in row_of(judged(verdict), "matrix units, power, clocks").what


def matrix(*rows: list[float | None], name: str = "pair_bandwidth[3ranks]") -> dict[str, object]:
    return {"test": node_id("nvlink", name), "name": "pairs", "rows": list(rows), "unit": "B/s", "better": "higher"}


def test_the_slowest_pair_of_gpus_is_named() -> None:
    rows: list[list[float | None]] = [[None, 386e9, 387e9], [385e9, None, 232e9], [386e9, 388e9, None]]
    verdict = figure("pair_bandwidth[3ranks]", subject="nvlink", value=232e9, scope="pair")
    row = row_of(judged(verdict, matrices=(matrix(*rows[::-1], name="other"), matrix(*rows))), "links between GPUs")
    assert "(GPU 1 to GPU 2)" in row.what


@pytest.mark.parametrize(
    "pairs",
    [
        matrix([None, 231e9, 232e9], [233e9, None, 232e9], [232e9, 232e9, None]),
        matrix([None, None], [None, None]),
        matrix([None, 1e9, 3e9], [3e9, None, 3e9], [3e9, 3e9, None], name="another[3ranks]"),
    ],
    ids=["alike", "not measured", "of another test"],
)
def test_no_pair_is_named_if_none_stands_out(pairs: dict[str, object]) -> None:
    verdict = figure("pair_bandwidth[3ranks]", subject="nvlink", value=232e9, scope="pair")
    row = row_of(judged(verdict, matrices=(pairs,)), "links between GPUs")
    assert row.state is State.SLOW
    assert "GPU " not in row.what


def test_a_partial_verdict_has_remarks_at_least_and_says_why() -> None:
    acceptance = judged(partial="interrupted in speed")
    assert acceptance.fitness is Fitness.REMARKS
    assert format_title(acceptance) == "fit, with remarks (partial: interrupted in speed)"


@pytest.mark.parametrize(
    ("acceptance", "fitness"),
    [
        (Acceptance([Row("host", State.OK, "x")]), Fitness.FIT),
        (Acceptance([Row("network", State.NOT_JUDGED, "x")]), Fitness.FIT),
        (Acceptance([Row("host", State.OK, "x")], ["a remark"]), Fitness.REMARKS),
        (Acceptance([Row("host", State.NOT_JUDGED, "x"), Row("numbers", State.OK, "x")]), Fitness.NUMBERS),
        (Acceptance([Row("host", State.OK, "x"), Row("numbers", State.OK, "x")]), Fitness.FIT),
        (Acceptance([Row("host", State.SLOW, "x")]), Fitness.UNFIT),
        (Acceptance([Row("host", State.BROKEN, "x")], ["a remark"]), Fitness.UNFIT),
    ],
)
def test_a_machine_is_unfit_if_a_component_is_slow_or_broken(acceptance: Acceptance, fitness: Fitness) -> None:
    assert acceptance.fitness is fitness
