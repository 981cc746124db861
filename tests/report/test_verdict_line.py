"""One verdict as one line."""

from dataclasses import replace
from datetime import date

import pytest

from pytest_gpuperf.baselines.reviewed import KnownRegression, MetricPolicy
from pytest_gpuperf.baselines.schema import LaunchFigure, MetricBaseline
from pytest_gpuperf.figures.conditions import Gate, Tripped
from pytest_gpuperf.figures.metric import Metric
from pytest_gpuperf.report.verdict_line import describe, run_policy_lines, tripped_in_words
from pytest_gpuperf.verdicts.outcome import Outcome
from pytest_gpuperf.verdicts.rule import Policy
from pytest_gpuperf.verdicts.verdict import Verdict

TEST = "suites/collectives/test_performance.py::test_all_reduce[8ranks-1GiB]"
KEY = "8x-nvidia-h200-nv18"
COMMAND = "pytest suites --gpus 8 --update-baselines"
APPEND = f"{COMMAND}=append --launches=7"

MEDIANS = (354e9, 355e9, 356e9, 357e9, 358e9)
BASELINE = MetricBaseline(
    "B/s", "higher", "cuda_event", tuple(LaunchFigure(f"l{i}", 50, m) for i, m in enumerate(MEDIANS))
)
HOT = (Tripped("GPU-1", Gate.POWER_BRAKE),)
REGRESSED = Verdict(
    TEST, "busbw", Metric(298e9, "B/s", "higher"), Outcome.REGRESSED, KEY, BASELINE, 298 / 356 - 1, 0.05
)
SPEEDUP = Metric(1.1, "x", "higher", interval=(1.05, 1.15), at_least=1.2)
EXPECTED = KnownRegression("a slow driver", date(2027, 1, 31), 310e9)
AGAINST = f"the baseline 356.0 GB/s (spread 0.4 % over 5 launches, bound 5.0 %) on {KEY}"
CONFIRMED = AGAINST.replace("bound 5.0 %", "bound 5.0 %, median of 3 fresh launches")
OWN = AGAINST.replace("bound 5.0 %", "bound 5.0 %; by its own policy {}")
LESS = 'or let less be found of it, by "policy" in the baselines'


def command(identity: str, *more: str, mode: str = "") -> str:
    assert identity == TEST
    return " ".join([f"{COMMAND}={mode}" if mode else COMMAND, *more])


@pytest.mark.parametrize(
    ("verdict", "finding"),
    [
        (REGRESSED, f"298.0 GB/s is 16.3 % worse than {AGAINST}"),
        (
            replace(REGRESSED, metric=Metric(400e9, "B/s", "higher"), outcome=Outcome.IMPROVED, change=0.1236),
            f"400.0 GB/s is 12.4 % better than {AGAINST}; adopt it with: {COMMAND}",
        ),
        (
            replace(REGRESSED, expected=EXPECTED),
            f"298.0 GB/s is 16.3 % worse than {AGAINST}; it was expected at 310.0 GB/s until 2027-01-31: a slow driver",
        ),
        (
            replace(REGRESSED, outcome=Outcome.EXPECTED, expected=EXPECTED),
            f"298.0 GB/s is 16.3 % worse than {AGAINST}, as is expected until 2027-01-31: a slow driver",
        ),
        (replace(REGRESSED, outcome=Outcome.SAME), f"298.0 GB/s is the same as {AGAINST}"),
        (
            replace(REGRESSED, elsewhere=True),
            f"298.0 GB/s is 16.3 % worse than {AGAINST.replace('launches', 'launches, none on these very GPUs')}",
        ),
        (
            replace(REGRESSED, outcome=Outcome.UNDECIDED, needed=12, more=7),
            f"298.0 GB/s is 16.3 % worse than {AGAINST}, and no number of fresh launches could tell such a loss "
            f"from its spread; its baseline needs 12 launches, so add 7 or more: {APPEND}; {LESS}",
        ),
        (
            replace(REGRESSED, outcome=Outcome.UNDECIDED),
            f"298.0 GB/s is 16.3 % worse than {AGAINST}, and no number of fresh launches could tell such a loss "
            f"from its spread; no number of recorded ones would do: make the measurement quieter, {LESS}",
        ),
        (
            replace(REGRESSED, outcome=Outcome.UNDECIDED, needed=12, more=7, launches=3, interval=(-0.2, -0.1)),
            f"298.0 GB/s is 16.3 % worse than {CONFIRMED}, and a loss of less than 5.0 % could hide from 3 fresh "
            f"launches in its spread; its baseline needs 12 launches, so add 7 or more: {APPEND}; {LESS}",
        ),
        (
            replace(REGRESSED, outcome=Outcome.UNDECIDED, change=0.02, bound=None, launches=3, interval=(-0.2, -0.1)),
            f"298.0 GB/s is 2.0 % better than {CONFIRMED.replace(', bound 5.0 %', '')}, and a loss of any size could "
            "hide from 3 fresh launches in its spread; no number of recorded ones would do: make the measurement "
            f"quieter, {LESS}",
        ),
        (
            replace(REGRESSED, outcome=Outcome.SAME, policy=MetricPolicy("noisy", 0.2)),
            f"298.0 GB/s is the same as {OWN.format('slower by 20.0 % is to be found: noisy')}",
        ),
        (
            replace(REGRESSED, policy=MetricPolicy("noisy", 0.2, 0.1)),
            "298.0 GB/s is 16.3 % worse than "
            + OWN.format("slower by 20.0 % is to be found, slower by 10.0 % is no regression: noisy"),
        ),
        (
            replace(REGRESSED, launches=3, interval=(-0.2, -0.1)),
            f"298.0 GB/s is 16.3 % worse than {CONFIRMED}",
        ),
        (
            replace(REGRESSED, outcome=Outcome.SUSPECT),
            f"298.0 GB/s is 16.3 % worse than {AGAINST} in one launch, and the run ended before others decided",
        ),
        (
            replace(REGRESSED, metric=Metric(298e9, "B/s", "higher", invalid=HOT), outcome=Outcome.INVALID),
            "298.0 GB/s was measured on a machine that was not fit for it, twice: GPU GPU-1: power brake",
        ),
        (
            replace(REGRESSED, outcome=Outcome.SHIFTED),
            f"298.0 GB/s is 16.3 % worse than {AGAINST}, as most figures of this run are",
        ),
        (
            replace(REGRESSED, outcome=Outcome.SHIFTED, control=0.04, of_the_gpus=True),
            f"298.0 GB/s is 16.3 % worse than {AGAINST}, and the control workload 4.0 % slower, which may be why: GPUs "
            "of one kind differ at their power limit",
        ),
        (
            replace(REGRESSED, outcome=Outcome.SHIFTED, control=0.04),
            f"298.0 GB/s is 16.3 % worse than {AGAINST}, and the control workload 4.0 % slower: the machine, or what "
            "is under all tests",
        ),
        (
            replace(REGRESSED, metric=SPEEDUP, outcome=Outcome.MISSED),
            "1.10x (95 % on each side: 1.05x to 1.15x) is surely below the 1.20x asked for",
        ),
        (
            replace(REGRESSED, metric=SPEEDUP, outcome=Outcome.MISSED, launches=5, interval=(-0.2, -0.1)),
            "1.10x (95 % on each side: 1.05x to 1.15x), median of 5 fresh launches, is surely below the 1.20x asked "
            "for",
        ),
        (
            replace(REGRESSED, metric=SPEEDUP, outcome=Outcome.DOUBTFUL),
            "1.10x (95 % on each side: 1.05x to 1.15x) may be below the 1.20x asked for",
        ),
        (
            replace(REGRESSED, outcome=Outcome.MISSING, baseline=None, change=None, bound=None),
            f"298.0 GB/s has no baseline on {KEY}; record one with: {COMMAND}",
        ),
        (
            replace(REGRESSED, outcome=Outcome.RECORDED, baseline=None, change=None, bound=None),
            f"298.0 GB/s recorded as the baseline on {KEY}",
        ),
        (replace(REGRESSED, outcome=Outcome.UNJUDGED, baseline=None), f"298.0 GB/s on {KEY}, not judged"),
    ],
    ids=lambda value: value.outcome.value if isinstance(value, Verdict) else "",
)
def test_a_line_says_what_was_found(verdict: Verdict, finding: str) -> None:
    assert describe(verdict, command) == f"{TEST} busbw: {finding}"


@pytest.mark.parametrize(
    ("metric", "why"),
    [
        (Metric(1.0, "B/s", "higher"), "the test's body has changed since"),
        (Metric(1.0, "s", "higher"), "it is in 'B/s', the test now in 's'"),
        (Metric(1.0, "B/s", "lower"), "there 'higher' was better, in the test now 'lower'"),
        (
            Metric(1.0, "B/s", "higher", clock="cuda_graph"),
            "it was timed by 'cuda_event', the test is now by 'cuda_graph'",
        ),
    ],
)
def test_a_stale_baseline_says_why(metric: Metric, why: str) -> None:
    line = describe(replace(REGRESSED, metric=metric, outcome=Outcome.STALE), command)
    assert line.endswith(f"has a stale baseline on {KEY}: {why}; record it again with: {COMMAND}")


@pytest.mark.parametrize(
    ("metric", "finding"),
    [
        (
            Metric(500e9, "B/s", "higher", limit=450e9, limit_name="18 NVLinks"),
            "500.0 GB/s is above the physical limit 450.0 GB/s of 18 NVLinks: the measurement is broken",
        ),
        (
            Metric(1e-3, "s", "lower", limit=2e-3),
            "1.000 ms is below the physical limit 2.000 ms: the measurement is broken",
        ),
    ],
)
def test_a_broken_measurement_says_what_it_exceeds(metric: Metric, finding: str) -> None:
    verdict = replace(REGRESSED, metric=metric, outcome=Outcome.BROKEN, baseline=None)
    assert describe(verdict, command) == f"{TEST} busbw: {finding}"


def test_one_launch_has_no_spread() -> None:
    single = replace(BASELINE, launches=BASELINE.launches[:1])
    line = describe(replace(REGRESSED, baseline=single), command)
    assert "the baseline 354.0 GB/s (spread unknown from 1 launch, bound 5.0 %)" in line


@pytest.mark.parametrize("outcome", Outcome)
def test_every_outcome_is_one_line(outcome: Outcome) -> None:
    for verdict in (REGRESSED, replace(REGRESSED, baseline=None, change=None, bound=None)):
        line = describe(replace(verdict, outcome=outcome), command)
        assert line.startswith(f"{TEST} busbw: ")
        assert "\n" not in line


TOLD = "by gpuperf_tolerance and gpuperf_min_effect this run asks for less than usual: "


@pytest.mark.parametrize(
    ("policy", "lines"),
    [
        (Policy(), []),
        (Policy(detect=0.04, min_effect=0.01), []),
        (Policy(detect=9.0), [TOLD + "slower by 900.0 % is to be found (usually 5.0 %)"]),
        (Policy(min_effect=0.02), [TOLD + "slower by 2.0 % is no regression (usually 1.5 %)"]),
        (
            Policy(detect=9.0, min_effect=5.0),
            [
                TOLD + "slower by 900.0 % is to be found (usually 5.0 %), slower by 500.0 % is no regression (usually "
                "1.5 %)"
            ],
        ),
    ],
)
def test_a_run_that_asks_for_less_says_so(policy: Policy, lines: list[str]) -> None:
    assert run_policy_lines(policy, [REGRESSED, replace(REGRESSED, change=None)]) == lines
    assert run_policy_lines(policy, [replace(REGRESSED, change=None)]) == []  # nothing was held against a baseline
    assert run_policy_lines(policy, []) == []


@pytest.mark.parametrize(
    ("tripped", "words"),
    [
        (Tripped("GPU-1", Gate.HARDWARE_SLOWDOWN), "hardware slowdown"),
        (Tripped("GPU-1", Gate.SOFTWARE_THERMAL_SLOWDOWN), "software thermal slowdown"),
        (Tripped("GPU-1", Gate.HARDWARE_THERMAL_SLOWDOWN), "hardware thermal slowdown"),
        (Tripped("GPU-1", Gate.POWER_BRAKE), "power brake"),
        (Tripped("GPU-1", Gate.OTHER_PROCESSES, 1, 0), "1 other process computed on it"),
        (Tripped("GPU-1", Gate.OTHER_PROCESSES, 2.0, 0.0), "2 other processes computed on it"),
        (Tripped("GPU-1", Gate.LOST_NVLINKS, 17, 18), "17 NVLinks were active, 18 when the run began"),
        (Tripped("GPU-1", Gate.LOST_NVLINKS, 0, 18), "0 NVLinks were active, 18 when the run began"),
        (Tripped("GPU-1", Gate.MEMORY_ERRORS, 2, 0), "2 uncorrected memory errors"),
        (Tripped("GPU-1", Gate.LITTLE_MEMORY, 100 * 2**20, 256 * 2**20, "B"), "100 MiB of memory were free"),
        (Tripped("GPU-1", Gate.SLOW_CLOCK, 345e6, 1.98e9, "Hz"), "its SM clock fell from 1980 to 345 MHz"),
        (Tripped("GPU-1", Gate.XID, 94), "the driver reported Xid 94"),
    ],
)
def test_each_gate_has_words(tripped: Tripped, words: str) -> None:
    assert tripped_in_words([tripped]) == f"GPU GPU-1: {words}"


def test_the_gates_of_all_gpus_are_named() -> None:
    tripped = [Tripped("GPU-1", Gate.POWER_BRAKE), Tripped("GPU-2", Gate.XID, 48)]
    assert tripped_in_words(tripped) == "GPU GPU-1: power brake; GPU GPU-2: the driver reported Xid 48"
