"""One verdict as one line."""

from dataclasses import replace
from datetime import date

import pytest

from pytest_gpuperf.baselines.reviewed import KnownRegression
from pytest_gpuperf.baselines.schema import LaunchFigure, MetricBaseline
from pytest_gpuperf.figures.conditions import Gate, Tripped
from pytest_gpuperf.figures.metric import Metric
from pytest_gpuperf.model.opinion import Opinion, Saying
from pytest_gpuperf.report.verdict_line import describe, opinion_lines, run_lines, run_policy_lines, tripped_in_words
from pytest_gpuperf.verdicts.outcome import Outcome, Reason
from pytest_gpuperf.verdicts.rule import Policy
from pytest_gpuperf.verdicts.share import Share
from pytest_gpuperf.verdicts.verdict import Verdict

TEST = "suites/collectives/test_performance.py::test_all_reduce[8ranks-1GiB]"
KEY = "8x-nvidia-h200-nv18"
COMMAND = "pytest suites --gpus 8 --update-baselines"

MEDIANS = (354e9, 355e9, 356e9, 357e9, 358e9)
BASELINE = MetricBaseline(
    "B/s", "higher", "cuda_event", tuple(LaunchFigure(f"l{i}", 50, m) for i, m in enumerate(MEDIANS))
)
HOT = (Tripped("GPU-1", Gate.POWER_BRAKE),)
REGRESSED = Verdict(
    TEST, "busbw", Metric(298e9, "B/s", "higher"), Outcome.REGRESSED, KEY, BASELINE, 298 / 356 - 1, 0.05
)
RACED = replace(
    REGRESSED,
    against="abc1234",
    launches=6,
    code=Share(-0.05, (-0.06, -0.041), 6),
    environment=Share(-0.113, (-0.12, -0.1), 6),
)
SHARES = (
    "the code -5.0 % (-6.0 % to -4.1 % in 6 launches of each) against abc1234, "
    "the environment -11.3 % (-12.0 % to -10.0 % in 6 launches) against the record"
)
UNCHANGED = replace(RACED, code=None, outcome=Outcome.ENVIRONMENT)
OF_UNCHANGED = f"the code unchanged since abc1234, {SHARES.partition('abc1234, ')[2]}"
CONTEST = replace(RACED, baseline=None, change=None, bound=None, environment=None)
SPEEDUP = Metric(1.1, "x", "higher", interval=(1.05, 1.15), at_least=1.2)
EXPECTED = KnownRegression("a slow driver", date(2027, 1, 31), 310e9)
AGAINST = f"the baseline 356.0 GB/s (spread 0.4 % over 5 launches, a loss of 5.0 % is seen) on {KEY}"


def command(identity: str, *more: str, mode: str = "") -> str:
    assert identity == TEST
    return " ".join([f"{COMMAND}={mode}" if mode else COMMAND, *more])


@pytest.mark.parametrize(
    ("verdict", "finding"),
    [
        (RACED, f"298.0 GB/s is 16.3 % worse than {AGAINST}: {SHARES}"),
        (CONTEST, f"298.0 GB/s: {SHARES.partition(', ')[0]}"),
        (replace(CONTEST, outcome=Outcome.IMPROVED), f"298.0 GB/s: {SHARES.partition(', ')[0]}"),
        (replace(CONTEST, outcome=Outcome.SAME), f"298.0 GB/s is the same as abc1234: {SHARES.partition(', ')[0]}"),
        (replace(RACED, outcome=Outcome.ENVIRONMENT), f"298.0 GB/s is 16.3 % worse than {AGAINST}: {SHARES}"),
        (UNCHANGED, f"298.0 GB/s is 16.3 % worse than {AGAINST}: {OF_UNCHANGED}"),
        (
            replace(UNCHANGED, outcome=Outcome.SAME, reason=Reason.NOT_REPRODUCED),
            f"298.0 GB/s is the same as {AGAINST}: {OF_UNCHANGED}",
        ),
        (
            replace(RACED, outcome=Outcome.SAME, reason=Reason.NOT_REPRODUCED),
            f"298.0 GB/s is the same as {AGAINST}: {SHARES}",
        ),
        (
            replace(REGRESSED, outcome=Outcome.SAME, reason=Reason.CLEARED, launches=3),
            f"298.0 GB/s is the same as {AGAINST}, by 3 launches",
        ),
        (replace(REGRESSED, outcome=Outcome.SAME), f"298.0 GB/s is the same as {AGAINST}"),
        (
            replace(REGRESSED, reason=Reason.NOT_RACED, detail="there is no git: install it", launches=4),
            f"298.0 GB/s is 16.3 % worse than {AGAINST}; it was not raced: there is no git: install it",
        ),
        (
            replace(REGRESSED, metric=Metric(400e9, "B/s", "higher"), outcome=Outcome.IMPROVED, change=0.1236),
            f"400.0 GB/s is 12.4 % better than {AGAINST}; adopt it with: {COMMAND}",
        ),
        (
            replace(RACED, expected=EXPECTED),
            f"298.0 GB/s is 16.3 % worse than {AGAINST}: {SHARES}; it was expected at 310.0 GB/s until 2027-01-31: a "
            "slow driver",
        ),
        (
            replace(REGRESSED, outcome=Outcome.EXPECTED, expected=EXPECTED),
            f"298.0 GB/s is 16.3 % worse than {AGAINST}, as is expected until 2027-01-31: a slow driver",
        ),
        (
            replace(RACED, elsewhere=True),
            f"298.0 GB/s is 16.3 % worse than {AGAINST.replace('launches', 'launches, none on these very GPUs')}: "
            f"{SHARES}",
        ),
        (
            REGRESSED.undecided(Reason.SUSPECT),
            f"298.0 GB/s is 16.3 % worse than {AGAINST} in one launch, and the run ended before others decided",
        ),
        (
            REGRESSED.undecided(Reason.BUDGET),
            f"298.0 GB/s is 16.3 % worse than {AGAINST}, and no time was left to decide: raise --race-budget",
        ),
        (
            REGRESSED.undecided(Reason.CANNOT_RACE, "there is no git: install it"),
            f"298.0 GB/s is 16.3 % worse than {AGAINST}, and nothing can decide why: no race, since there is no git: "
            "install it; and the record has too few launches on these GPUs to decide alone",
        ),
        (
            CONTEST.undecided(Reason.CANNOT_RACE, "there is no git: install it"),
            "298.0 GB/s was not raced: there is no git: install it",
        ),
        (CONTEST.undecided(Reason.SUSPECT), "298.0 GB/s was not decided, and the run ended before others decided"),
        (
            CONTEST.undecided(Reason.BUDGET),
            "298.0 GB/s was not decided, and no time was left to decide: raise --race-budget",
        ),
        (
            RACED.undecided(Reason.OPEN),
            f"298.0 GB/s is 16.3 % worse than {AGAINST}, and 6 launches did not decide, as they differ too much: "
            f"{SHARES}; make the measurement quieter",
        ),
        (
            replace(REGRESSED, launches=26).undecided(Reason.OPEN, "there is no git: install it"),
            f"298.0 GB/s is 16.3 % worse than {AGAINST}, and 26 launches did not decide, as they differ too much, "
            "without a race: there is no git: install it; make the measurement quieter",
        ),
        (
            replace(REGRESSED, metric=SPEEDUP, launches=1).undecided(Reason.ASKED),
            "1.10x (95 % on each side: 1.05x to 1.15x) may be below the 1.20x asked for",
        ),
        (
            replace(
                REGRESSED,
                metric=Metric(298e9, "B/s", "higher", invalid=HOT),
                outcome=Outcome.INVALID,
                reason=Reason.UNFIT,
            ),
            "298.0 GB/s was measured on a machine that was not fit for it, twice: GPU GPU-1: power brake",
        ),
        (
            replace(REGRESSED, metric=SPEEDUP, outcome=Outcome.MISSED),
            "1.10x (95 % on each side: 1.05x to 1.15x) is surely below the 1.20x asked for",
        ),
        (
            replace(REGRESSED, metric=SPEEDUP, outcome=Outcome.MISSED, launches=5),
            "1.10x (95 % on each side: 1.05x to 1.15x), median of 5 launches, is surely below the 1.20x asked for",
        ),
        (
            replace(
                REGRESSED, outcome=Outcome.MISSING, reason=Reason.NO_RECORD, baseline=None, change=None, bound=None
            ),
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


NO_RECORD = replace(REGRESSED, outcome=Outcome.MISSING, reason=Reason.NO_RECORD, baseline=None, change=None, bound=None)
EXPECTS = "a model of the hardware expects 260.0 GB/s to 459.0 GB/s (links)"


@pytest.mark.parametrize(
    ("said", "reason", "words"),
    [
        (Opinion(Saying.PLAUSIBLE, 260e9, 459e9, "links"), Reason.PLAUSIBLE, f"; {EXPECTS}, so it is plausible"),
        (
            Opinion(Saying.PLAUSIBLE, 260e9, 459e9, "links"),
            Reason.NO_RECORD,
            f"; {EXPECTS}, so it is plausible, and --strict-baselines asks for a record",
        ),
        (
            Opinion(Saying.BELOW, 260e9, 459e9, "links"),
            Reason.BELOW,
            f" and is worse than expected: {EXPECTS}; look for the cause with: python -m pytest_gpuperf doctor",
        ),
        (
            Opinion(Saying.BELOW, 260e9, 459e9, "links", variables=("NCCL_P2P_DISABLE=1", "NCCL_ALGO=ring")),
            Reason.BELOW,
            f" and is worse than expected: {EXPECTS}; set here: NCCL_P2P_DISABLE=1, NCCL_ALGO=ring; look for the cause "
            "with: python -m pytest_gpuperf doctor",
        ),
        (
            Opinion(Saying.ABOVE, 260e9, 459e9, "links"),
            Reason.ABOVE_MODEL,
            f" and is better than the hardware allows: {EXPECTS}; look at the measurement",
        ),
        (
            Opinion(Saying.NONE, why="no peak is known"),
            Reason.NOT_JUDGED,
            ", and nothing says what it should be: no peak is known",
        ),
        (
            Opinion(Saying.PLAUSIBLE, None, 459e9, "links"),
            Reason.PLAUSIBLE,
            "; a model of the hardware expects at most 459.0 GB/s (links), so it is plausible",
        ),
        (
            Opinion(Saying.PLAUSIBLE, 260e9, None, "links"),
            Reason.PLAUSIBLE,
            "; a model of the hardware expects at least 260.0 GB/s (links), so it is plausible",
        ),
        (
            Opinion(Saying.BELOW, 330e9, source="9 launches on 4 machines of this kind", usual=350e9, seen=0.064),
            Reason.BELOW,
            " and is worse than expected: 9 launches on 4 machines of this kind show at least 330.0 GB/s, usually "
            "350.0 GB/s; look for the cause with: python -m pytest_gpuperf doctor",
        ),
    ],
)
def test_what_is_expected_is_in_the_line(said: Opinion, reason: Reason, words: str) -> None:
    line = describe(replace(NO_RECORD, opinion=said, reason=reason), command)
    assert line == f"{TEST} busbw: 298.0 GB/s has no baseline on {KEY}{words}; record one with: {COMMAND}"


def test_what_differs_from_the_record_is_in_the_line_of_a_figure_that_is_not_the_same() -> None:
    differs = {"nccl": ("2.28.9", "2.29.0"), "NCCL_MAX_NCHANNELS": ("", "12")}
    line = describe(replace(REGRESSED, differs=differs), command)
    assert line.endswith("; what differs: NCCL_MAX_NCHANNELS not set -> 12, nccl 2.28.9 -> 2.29.0")
    assert "what differs" not in describe(replace(RACED, outcome=Outcome.ENVIRONMENT, differs=differs), command)


def test_the_summary_says_who_judged_the_figures_without_a_baseline() -> None:
    by_model = replace(NO_RECORD, reason=Reason.PLAUSIBLE, opinion=Opinion(Saying.PLAUSIBLE, 260e9))
    by_machines = replace(by_model, opinion=Opinion(Saying.PLAUSIBLE, 260e9, source="9 launches"))
    by_nobody = replace(NO_RECORD, reason=Reason.NOT_JUDGED, opinion=Opinion(Saying.NONE))
    assert opinion_lines([NO_RECORD, REGRESSED]) == []
    assert opinion_lines([by_model, by_machines, by_machines, by_nobody, REGRESSED]) == [
        "without a baseline: 2 figures as machines of this kind show; 1 figure as a model of the hardware expects, "
        "which sees what is badly wrong; 1 figure not judged, since nothing says what they should be; "
        "--strict-baselines, the default in CI, fails them"
    ]


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
    line = describe(replace(REGRESSED, metric=metric, outcome=Outcome.MISSING, reason=Reason.STALE), command)
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
    verdict = replace(REGRESSED, metric=metric, outcome=Outcome.INVALID, reason=Reason.ABOVE_LIMIT, baseline=None)
    assert describe(verdict, command) == f"{TEST} busbw: {finding}"


def test_one_launch_has_no_spread() -> None:
    single = replace(BASELINE, launches=BASELINE.launches[:1])
    line = describe(replace(REGRESSED, baseline=single), command)
    assert "the baseline 354.0 GB/s (spread unknown from 1 launch, a loss of 5.0 % is seen)" in line


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


def test_losses_of_the_environment_are_one_finding() -> None:
    differs = {"nccl": ("2.28.9", "2.29.0"), "NCCL_ALGO": ("", "Tree")}
    lost = replace(RACED, outcome=Outcome.ENVIRONMENT, differs=differs)
    told = (
        "the environment is slower, not the code: 2 figures lost against the record, and the record's own code "
        "(abc1234) is as slow today; "
    )
    assert run_lines(None, [lost, RACED, replace(lost, metric_name="time")]) == [
        f"{told}what differs: NCCL_ALGO not set -> Tree, nccl 2.28.9 -> 2.29.0"
    ]
    (line,) = run_lines(None, [replace(lost, differs={})])
    assert line.endswith(
        "1 figure lost against the record, and the record's own code (abc1234) is as slow today; no version and no "
        "variable that is kept differs: look at the machine, its clocks and its neighbours"
    )
    assert run_lines(None, [RACED]) == []


def test_a_run_that_moved_as_a_whole_is_one_finding() -> None:
    (line,) = run_lines(0.021, [])
    assert line == (
        "the whole run is 2.1 % slower than its record, in two launches (the median of all figures): the environment, "
        "or a change that slows or speeds up everything; --against tells which"
    )
    (line,) = run_lines(-0.03, [])
    assert line.startswith("the whole run is 3.0 % faster than its record")


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


def test_a_gpu_of_a_cluster_is_named_with_its_node() -> None:
    tripped = [Tripped("GPU-1", Gate.POWER_BRAKE, node="gpu-b")]
    assert tripped_in_words(tripped) == "GPU GPU-1 of node gpu-b: power brake"


def test_the_gates_of_all_gpus_are_named() -> None:
    tripped = [Tripped("GPU-1", Gate.POWER_BRAKE), Tripped("GPU-2", Gate.XID, 48)]
    assert tripped_in_words(tripped) == "GPU GPU-1: power brake; GPU GPU-2: the driver reported Xid 48"
