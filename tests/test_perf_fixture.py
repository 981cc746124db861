"""The perf fixture on gloo: what it runs, what it hands back, what it refuses."""

import re

import pytest

from tests.whole_run import WholeRun, run_pytest, write

TESTS = '''
import os, threading
import pytest, torch
import torch.distributed as dist
from pytest_gpuperf import Comparison, KiB, Metric, Timing

pytestmark = [pytest.mark.perf, pytest.mark.ranks(2)]

def all_reduce(ctx, *, numel, dtype):
    x = torch.ones(numel, dtype=dtype, device=ctx.device)
    return lambda: dist.all_reduce(x)

def counting(ctx, *, folder):
    (folder / f"prepared {ctx.rank}").touch(exist_ok=False)
    calls = []
    def step():
        calls.append(1)
        (folder / f"called {ctx.rank}").write_text(str(len(calls)))
        return torch.ones(1)
    return step

def test_bandwidth(perf):
    nbytes = perf.sized(1 << 30, smoke=KiB)
    timing = perf.measure(all_reduce, numel=nbytes // 2, dtype=torch.bfloat16)
    assert isinstance(timing, Timing)
    assert (timing.world_size, len(timing.samples)) == (2, 2)
    assert timing.ranks[0].clock == "host"
    perf.check(busbw=timing.busbw("all_reduce", nbytes), time=timing.time)

def test_measure_runs_each_step_twice(perf, tmp_path):
    timing = perf.measure(counting, folder=tmp_path)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        "prepared 0": "", "prepared 1": "", "called 0": "2", "called 1": "2"
    }
    perf.check(time=timing.time)

def tensors(ctx, *, arm, n=4):
    return lambda: torch.full((n,), float(ctx.rank))

def test_compare(perf, tmp_path):
    (tmp_path / "baseline").mkdir()
    def other(ctx, *, folder):
        return counting(ctx, folder=folder / "baseline")
    pair = perf.compare(baseline=other, optimized=counting, folder=tmp_path)
    assert isinstance(pair, Comparison)
    # Once to compare the outputs, then two samples.
    assert (tmp_path / "called 1").read_text() == (tmp_path / "baseline" / "called 1").read_text() == "3"
    assert len(pair.baseline.samples) == len(pair.optimized.samples) == 2
    perf.check(speedup=pair.speedup)

def test_the_arms_share_group_and_seed(perf):
    def drawn(ctx):
        x = torch.rand(3, generator=ctx.generator())
        def step():
            y = x.clone()
            dist.all_reduce(y)
            return {"sum": y}
        return step
    perf.check(speedup=perf.compare(baseline=drawn, optimized=drawn).speedup)

def one(ctx):
    return lambda: torch.ones(3)

def off_by(amount, on=(0, 1)):
    def optimized(ctx):
        return lambda: torch.ones(3) + (amount if ctx.rank in on else 0)
    return optimized

def test_outputs_differ_on_one_rank(perf):
    perf.compare(baseline=one, optimized=off_by(1, on=(1,)))

def test_outputs_differ_in_number(perf):
    def two(ctx):
        return lambda: (torch.ones(3), torch.ones(3))
    perf.compare(baseline=one, optimized=two)

def test_outputs_within_a_tolerance(perf):
    with pytest.raises(AssertionError, match="the arms' outputs differ in tensor 0"):
        perf.configured(rtol=0, atol=0.1).compare(baseline=one, optimized=off_by(0.2))
    pair = perf.configured(rtol=0, atol=0.3).configured(samples=20).compare(baseline=one, optimized=off_by(0.2))
    perf.check(speedup=pair.speedup)

def test_arms_share_a_buffer(perf):
    """Outputs are compared as they were after each arm's first step."""
    shared = {}
    def writes(value):
        def program(ctx):
            buffer = shared.setdefault("buffer", torch.zeros(2))
            return lambda: buffer.fill_(value)
        return program
    with pytest.raises(AssertionError, match="the arms' outputs differ in tensor 0"):
        perf.compare(baseline=writes(1), optimized=writes(2))
    perf.check(speedup=perf.compare(baseline=writes(1), optimized=writes(1)).speedup)

def test_arm_returns_nothing(perf):
    def nothing(ctx):
        return lambda: None
    perf.compare(baseline=one, optimized=nothing)

def test_program_returns_no_step(perf):
    perf.measure(lambda ctx: None)

def test_program_returns_a_tensor(perf):
    perf.measure(lambda ctx: torch.ones(1))

def test_arguments_that_cannot_be_called(perf):
    must = "must be a function that takes a context, got"
    with pytest.raises(TypeError, match=f"^timed program {must} 3 of type int$"):
        perf.measure(3)
    with pytest.raises(TypeError, match=f"^baseline {must} None of type NoneType$"):
        perf.compare(baseline=None, optimized=one)
    with pytest.raises(TypeError, match=f"^optimized {must} 'x' of type str$"):
        perf.compare(baseline=one, optimized="x")
    with pytest.raises(TypeError, match=f"^communication {must} 4 of type int$"):
        perf.overlap(together=one, compute=one, communication=4)
    with pytest.raises(TypeError, match=f"^metered program {must} 5 of type int$"):
        perf.meter(5)
    perf.check(time=Metric(1.0, "s", "lower"))

def test_configured(perf):
    with pytest.raises(TypeError, match="^perf has no setting 'sample'; it has rtol, atol, budget, cold, cuda"):
        perf.configured(sample=20)
    with pytest.raises(TypeError, match="^perf has no setting 'smoke'; it has"):
        perf.configured(smoke=True)
    for alone in ({"rtol": 0.1}, {"atol": 0.1}):
        with pytest.raises(TypeError, match="^rtol and atol are given together, as torch.testing.assert"):
            perf.configured(**alone)
    with pytest.raises(ValueError, match="^samples must be 10 or more, got 3$"):
        perf.configured(samples=3)
    for setting in ("budget", "window"):
        with pytest.raises(ValueError, match=f"^{setting} must be a positive number of seconds, got 0$"):
            perf.configured(**{setting: 0})
    again = perf.configured(samples=20, cuda_graph=True)
    assert (again.smoke, again.world_size) == (True, 2)
    again.check(time=again.measure(one).time)  # belongs to the same test

def test_overlap(perf):
    found = perf.overlap(together=one, compute=one, communication=one)
    assert [len(arm.samples) for arm in (found.together, found.compute, found.communication)] == [2, 2, 2]
    perf.check(exposed=found.exposed, efficiency=found.efficiency, ideal=found.ideal)

def test_meter(perf):
    readings = perf.meter(one)
    assert (readings.world_size, readings.steps) == (2, 1)
    assert readings.energy is None
    with pytest.raises(TypeError, match="^check takes Metric values, got energy=None of type NoneType: .* leave a"):
        perf.check(energy=readings.energy)
    perf.check(seconds=Metric(readings.seconds, "s", "lower"))

def test_check_takes_metrics(perf):
    with pytest.raises(TypeError, match=r"^check needs a metric, for example check\\(busbw=timing.busbw\\("):
        perf.check()
    with pytest.raises(TypeError, match=r"^check takes Metric values, got time=1.5 of type float: use a timing's own "):
        perf.check(time=1.5)
    perf.check(time=Metric(1.0, "s", "lower"))
    with pytest.raises(ValueError, match="^metric 'time' was used already in this test: give each figure"):
        perf.check(time=Metric(2.0, "s", "lower"))
    with pytest.raises(ValueError, match="^metric 'time' was used already"):
        perf.configured(samples=20).check(time=Metric(2.0, "s", "lower"))
    perf.show(other=Metric(3.0, "s", "lower"))
    with pytest.raises(ValueError, match="^metric 'other' was used already in this test: give each figure"):
        perf.check(other=Metric(3.0, "s", "lower"))
    with pytest.raises(TypeError, match=r"^show needs a metric, for example show\\(busbw="):
        perf.show()
    with pytest.raises(TypeError, match="^show takes Metric values, got time=2 of type int"):
        perf.show(time=2)

def test_checks_nothing(perf):
    perf.measure(one)

def test_fails_by_itself(perf):
    perf.measure(one)
    assert False, "the test's own assertion"

def test_raises_while_it_is_timed(perf):
    def program(ctx):
        def step():
            if ctx.rank == 1:
                raise ValueError("in the step")
            dist.barrier()
        return step
    perf.measure(program)

def test_link(perf):
    assert perf.link.line_rate is None
    with pytest.raises(ValueError, match="^no bus bandwidth is defined for 'gossip'"):
        perf.measure(one).busbw("gossip", 8)
    perf.check(time=Metric(1.0, "s", "lower"))

@pytest.mark.ranks(1)
def test_alone(perf):
    timing = perf.measure(one)
    with pytest.raises(ValueError, match="^bus bandwidth needs 2 ranks or more, got a world of 1"):
        timing.busbw("all_reduce", 8)
    perf.check(time=timing.time)
'''


@pytest.fixture(scope="module")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> WholeRun:
    folder = write(tmp_path_factory.mktemp("smoke"), {"test_perf.py": TESTS, "pytest.ini": "[pytest]\n"})
    return run_pytest(folder, "--smoke", "--junitxml=report.xml")


@pytest.mark.parametrize(
    "name",
    [
        "test_bandwidth[2ranks]",
        "test_measure_runs_each_step_twice[2ranks]",
        "test_compare[2ranks]",
        "test_the_arms_share_group_and_seed[2ranks]",
        "test_outputs_within_a_tolerance[2ranks]",
        "test_arms_share_a_buffer[2ranks]",
        "test_arguments_that_cannot_be_called[2ranks]",
        "test_configured[2ranks]",
        "test_overlap[2ranks]",
        "test_meter[2ranks]",
        "test_check_takes_metrics[2ranks]",
        "test_link[2ranks]",
        "test_alone[1rank]",
    ],
)
def test_it_does_what_the_users_test_says(smoke: WholeRun, name: str) -> None:
    assert smoke.outcomes[name] == "PASSED", smoke.report(name)


def test_outputs_that_differ_fail_and_name_the_rank(smoke: WholeRun) -> None:
    report = smoke.report("test_outputs_differ_on_one_rank[2ranks]")
    assert "AssertionError: the arms' outputs differ in tensor 0: Tensor-likes are not close!" in report
    assert re.search(r"raised on rank 1 of 2 \(gloo\) in test_perf:off_by\.<locals>\.optimized", report)


def test_outputs_that_differ_in_number_fail(smoke: WholeRun) -> None:
    report = smoke.report("test_outputs_differ_in_number[2ranks]")
    assert "AssertionError: the arms' outputs differ: baseline has 1 tensors, optimized 2" in report


def test_an_arm_without_output_cannot_be_compared(smoke: WholeRun) -> None:
    report = smoke.report("test_arm_returns_nothing[2ranks]")
    assert (
        "TypeError: the step of test_arm_returns_nothing.<locals>.nothing returned no tensor: both arms must" in report
    )


@pytest.mark.parametrize(
    ("name", "what"),
    [("test_program_returns_no_step[2ranks]", "None"), ("test_program_returns_a_tensor[2ranks]", "a Tensor")],
)
def test_a_program_that_prepares_no_step_is_told_so(smoke: WholeRun, name: str, what: str) -> None:
    report = smoke.report(name)
    assert re.search(rf"TypeError: timed program \S+ returned {what}, not a step: it must prepare its inputs", report)


def test_a_perf_test_that_checks_nothing_fails(smoke: WholeRun) -> None:
    assert smoke.outcomes["test_checks_nothing[2ranks]"] == "FAILED"
    assert smoke.report("test_checks_nothing[2ranks]").strip() == (
        "test_perf.py::test_checks_nothing[2ranks]: the perf test checked no metric, so nothing was judged: hand what "
        "it measures to perf.check, for example perf.check(time=timing.time)"
    )


def test_a_tests_own_failure_is_not_covered_by_one_of_the_judge(smoke: WholeRun) -> None:
    report = smoke.report("test_fails_by_itself[2ranks]")
    assert "AssertionError: the test's own assertion" in report
    assert "checked no metric" not in report


def test_an_exception_in_a_step_is_that_ranks(smoke: WholeRun) -> None:
    report = smoke.report("test_raises_while_it_is_timed[2ranks]")
    assert "ValueError: in the step" in report
    assert "raised on rank 1 of 2 (gloo)" in report


def test_figures_are_shown_and_not_judged(smoke: WholeRun) -> None:
    lines = smoke.section("gpuperf")
    assert re.fullmatch(r"\d+ figures on cpu: \d+ unjudged", lines[-1])
    assert any(
        line.startswith("unjudged") and line.endswith("test_perf.py::test_bandwidth[2ranks] busbw") for line in lines
    )


def test_perf_tests_of_fewer_ranks_come_first(smoke: WholeRun) -> None:
    assert next(iter(smoke.outcomes)) == "test_alone[1rank]"
