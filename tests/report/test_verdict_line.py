"""One verdict as text."""

from dataclasses import replace
from datetime import date

import pytest

from pytest_gpuperf.baselines.reviewed import KnownRegression
from pytest_gpuperf.baselines.schema import LaunchFigure, MetricBaseline
from pytest_gpuperf.features.page.facts import explain_not_judged
from pytest_gpuperf.figures.conditions import Gate, Tripped
from pytest_gpuperf.figures.metric import Metric
from pytest_gpuperf.report.run_lines import describe_opinions, describe_shift, run_policy_lines
from pytest_gpuperf.report.tripped import say_tripped
from pytest_gpuperf.report.undecided_lines import describe_undecided
from pytest_gpuperf.report.verdict_line import describe
from pytest_gpuperf.verdicts.opinion import Opinion, Saying
from pytest_gpuperf.verdicts.outcome import Outcome, Reason
from pytest_gpuperf.verdicts.rule import Policy
from pytest_gpuperf.verdicts.share import Share
from pytest_gpuperf.verdicts.verdict import Verdict
from tests.report.examples import COMMANDS

TEST = "suites/collectives/test_performance.py::test_all_reduce[8ranks-1GiB]"
KEY = "8x-nvidia-h200-nv18"
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
SEEN = "spread 0.4 % over 5 launches; a loss of 5.0 % is seen"
CODE = "code -5.0 % GB/s (-6.0 % to -4.1 % in 6 launches of each), against abc1234"
ENVIRONMENT = "environment -11.3 % GB/s (-12.0 % to -10.0 % in 6 launches), against the baseline"
SAME_CODE = "code unchanged since abc1234"
UNCHANGED = replace(RACED, code=None, outcome=Outcome.ENVIRONMENT)
CONTEST = replace(RACED, baseline=None, change=None, bound=None, environment=None, old=315e9)
SPEEDUP = Metric(1.1, "x", "higher", interval=(1.05, 1.15), at_least=1.2)
INTERVAL = "95 % on each side: 1.05x to 1.15x"
EXPECTED = KnownRegression("a slow driver", date(2027, 1, 31), 310e9)
SLOWER = "16.3 % slower than 356.0 GB/s"
NO_GIT = "there is no git: install it"
RECORD = f'pytest "{TEST}" --gpus 8 --update-baselines --reason "why"'
BISECT = f'bisect with: pytest "{TEST}" --gpus 8 --bisect=abc1234'
NO_RECORD = replace(REGRESSED, outcome=Outcome.MISSING, reason=Reason.NO_RECORD, baseline=None, change=None, bound=None)
SLOWER_STEP = replace(
    RACED,
    metric_name="time",
    metric=Metric(1.125e-3, "s", "lower"),
    baseline=MetricBaseline("s", "lower", "", tuple(LaunchFigure(f"l{i}", 50, 991e-6) for i in range(5))),
    change=1 - 1.125 / 0.991,
    code=Share(-0.134, (-0.141, -0.12), 4),
    environment=None,
    changed=("work.py",),
)


@pytest.mark.parametrize(
    ("verdict", "what", "details"),
    [
        (RACED, f"{SLOWER}, because of the code", [SEEN, CODE, ENVIRONMENT, BISECT]),
        (
            replace(RACED, changed=("work.py", "more.py")),
            f"{SLOWER}, because of the code (work.py and 1 more)",
            [SEEN, CODE, ENVIRONMENT, "changed since, and imported by the test: work.py, more.py", BISECT],
        ),
        (  # the machine became faster than it was when it was recorded
            replace(RACED, change=0.02),
            "5.0 % slower than abc1234, because of the code",
            [SEEN, CODE, ENVIRONMENT, BISECT],
        ),
        (CONTEST, "5.0 % slower than 315.0 GB/s of abc1234", [CODE, BISECT]),
        (
            replace(CONTEST, changed=("suites/x/work.py",)),
            "5.0 % slower than 315.0 GB/s of abc1234, because of the code (work.py)",
            [CODE, "changed since, and imported by the test: suites/x/work.py", BISECT],
        ),
        (
            replace(CONTEST, outcome=Outcome.IMPROVED, code=Share(0.05, (0.04, 0.06), 4)),
            "5.0 % faster than 315.0 GB/s of abc1234",
            ["code +5.0 % GB/s (+4.0 % to +6.0 % in 4 launches of each), against abc1234"],
        ),
        (replace(CONTEST, outcome=Outcome.SAME), "the same as 315.0 GB/s of abc1234", [CODE]),
        (replace(RACED, outcome=Outcome.ENVIRONMENT), f"{SLOWER}, the environment", [SEEN, CODE, ENVIRONMENT]),
        (UNCHANGED, f"{SLOWER}, the environment", [SEEN, SAME_CODE, ENVIRONMENT]),
        (
            replace(UNCHANGED, outcome=Outcome.SAME, reason=Reason.NOT_REPRODUCED),
            "the same as 356.0 GB/s",
            [SEEN, SAME_CODE, ENVIRONMENT],
        ),
        (
            replace(REGRESSED, outcome=Outcome.SAME, reason=Reason.CLEARED, launches=3),
            "the same as 356.0 GB/s",
            [SEEN, "cleared by 3 launches"],
        ),
        (replace(REGRESSED, outcome=Outcome.SAME), "the same as 356.0 GB/s", [SEEN]),
        (
            replace(REGRESSED, reason=Reason.NOT_RACED, detail=NO_GIT, launches=4),
            f"{SLOWER}, by the baseline alone",
            [SEEN, f"not raced: {NO_GIT}"],
        ),
        (
            replace(REGRESSED, reason=Reason.NOT_RACED, detail="it ended; it printed last:\n  File a\nno module c"),
            f"{SLOWER}, by the baseline alone",
            [SEEN, "not raced: it ended; it printed last: no module c"],
        ),
        (
            replace(REGRESSED, metric=Metric(400e9, "B/s", "higher"), outcome=Outcome.IMPROVED, change=0.1236),
            "12.4 % faster than 356.0 GB/s",
            [SEEN, f"adopt it with: {RECORD}"],
        ),
        (
            replace(RACED, expected=EXPECTED),
            f"{SLOWER}, because of the code",
            [SEEN, CODE, ENVIRONMENT, "it was expected at 310.0 GB/s until 2027-01-31: a slow driver", BISECT],
        ),
        (
            replace(REGRESSED, outcome=Outcome.EXPECTED, expected=replace(EXPECTED, center=None)),
            f"{SLOWER}, expected until 2027-01-31",
            [SEEN, "expected until 2027-01-31: a slow driver"],
        ),
        (
            replace(REGRESSED, outcome=Outcome.ENVIRONMENT, elsewhere=True),
            f"{SLOWER}, the environment",
            [SEEN.replace("launches", "launches, none of them on these GPUs")],
        ),
        (
            REGRESSED.leave_undecided(Reason.SUSPECT),
            f"{SLOWER}, undecided: no later launch decided",
            [SEEN],
        ),
        (
            REGRESSED.leave_undecided(Reason.BUDGET),
            f"{SLOWER}, undecided: time ran out",
            [SEEN, "raise --race-budget"],
        ),
        (
            REGRESSED.leave_undecided(Reason.CANNOT_RACE, NO_GIT),
            f"{SLOWER}, undecided: it could not race",
            [SEEN, f"not raced: {NO_GIT}", "the baseline has too few launches on these GPUs to decide alone"],
        ),
        (
            replace(CONTEST, code=None, against="").leave_undecided(Reason.CANNOT_RACE, NO_GIT),
            "undecided: it could not race",
            [f"not raced: {NO_GIT}"],
        ),
        (
            RACED.leave_undecided(Reason.OPEN),
            f"{SLOWER}, undecided: 6 launches differ too much",
            [SEEN, CODE, ENVIRONMENT, "run on a quieter machine, or time a longer step"],
        ),
        (
            replace(REGRESSED, launches=26).leave_undecided(Reason.OPEN, NO_GIT),
            f"{SLOWER}, undecided: 26 launches differ too much",
            [SEEN, f"not raced: {NO_GIT}", "run on a quieter machine, or time a longer step"],
        ),
        (
            replace(NO_RECORD, metric=SPEEDUP).leave_undecided(Reason.ASKED),
            "maybe below the 1.20x that the test requires",
            [INTERVAL],
        ),
        (
            replace(
                REGRESSED,
                metric=Metric(298e9, "B/s", "higher", invalid=HOT),
                outcome=Outcome.INVALID,
                reason=Reason.UNFIT,
            ),
            "the machine was not fit for the measurement, twice: GPU GPU-1: power brake",
            [],
        ),
        (
            replace(REGRESSED, metric=SPEEDUP, outcome=Outcome.MISSED),
            "surely below the 1.20x that the test requires",
            [INTERVAL],
        ),
        (
            replace(REGRESSED, metric=SPEEDUP, outcome=Outcome.MISSED, launches=5),
            "surely below the 1.20x that the test requires",
            [f"{INTERVAL}, median of 5 launches"],
        ),
        (NO_RECORD, f"no baseline on {KEY}", [f"record one with: {RECORD}"]),
        (replace(NO_RECORD, outcome=Outcome.RECORDED), f"recorded as the baseline on {KEY}", []),
        (replace(NO_RECORD, outcome=Outcome.UNJUDGED), "not judged", []),
    ],
    ids=lambda value: value.outcome.value if isinstance(value, Verdict) else "",
)
def test_the_first_line_says_what_happened_and_the_others_how_it_is_known(
    verdict: Verdict, what: str, details: list[str]
) -> None:
    value = "1.10x" if verdict.metric is SPEEDUP else "400.0 GB/s" if verdict.metric.value == 400e9 else "298.0 GB/s"
    assert describe(verdict, COMMANDS) == [f"busbw {value}: {what}", *details]


@pytest.mark.parametrize(
    ("verdict", "first", "detail"),
    [
        (
            replace(REGRESSED, reason=Reason.GROSS, elsewhere=True),
            f"busbw 298.0 GB/s: {SLOWER}, because of the code or this machine",
            "more than machines of this kind differ by; a race would tell slower code from a slower machine",
        ),
        (
            replace(REGRESSED, reason=Reason.EXACT),
            f"busbw 298.0 GB/s: {SLOWER}, counted",
            "it is counted, and all launches of the baseline counted the same",
        ),
        (
            replace(RACED, outcome=Outcome.ENVIRONMENT, reason=Reason.ELSEWHERE),
            f"busbw 298.0 GB/s: {SLOWER}, the environment",
            "a warning only, since the baseline does not know these GPUs; --environment=fail fails it",
        ),
        (
            replace(REGRESSED, outcome=Outcome.UNJUDGED, reason=Reason.NOISY, bound=0.47),
            f"busbw 298.0 GB/s: {SLOWER}, not judged: a loss below 47.0 % would not be seen",
            "spread 0.4 % over 5 launches; a loss of 47.0 % is seen",
        ),
        (
            replace(REGRESSED, outcome=Outcome.UNJUDGED, reason=Reason.NOISY),
            f"busbw 298.0 GB/s: {SLOWER}, not judged: it depends on the host, "
            "and the baseline does not know these GPUs",
            SEEN,
        ),
    ],
)
def test_what_needed_no_race_says_why(verdict: Verdict, first: str, detail: str) -> None:
    line, *others = describe(verdict, COMMANDS)
    assert line == first
    assert detail in others


def test_a_step_that_takes_longer_is_slower_and_its_time_grows() -> None:
    first, _, code, *_ = describe(SLOWER_STEP, COMMANDS)
    assert first == "time 1.125 ms: 13.5 % slower than 991.0 us, because of the code (work.py)"
    assert code == "code +13.4 % time (+12.0 % to +14.1 % in 4 launches of each), against abc1234"


def test_a_run_that_cannot_bisect_prints_no_command_for_it() -> None:
    assert BISECT not in describe(RACED, replace(COMMANDS, bisects=False))


MODEL = "a model of the hardware expects 260.0 GB/s to 459.0 GB/s (links)"
BOUNDS = "260.0 GB/s to 459.0 GB/s"
DOCTOR = "look for the cause with: python -m pytest_gpuperf doctor"


@pytest.mark.parametrize(
    ("said", "reason", "what", "details"),
    [
        (
            Opinion(Saying.PLAUSIBLE, 260e9, 459e9, "links"),
            Reason.PLAUSIBLE,
            f"no baseline on {KEY}",
            [MODEL, "it is plausible"],
        ),
        (
            Opinion(Saying.PLAUSIBLE, 260e9, 459e9, "links"),
            Reason.NO_RECORD,
            f"no baseline on {KEY}",
            [MODEL, "it is plausible; --strict-baselines requires a baseline"],
        ),
        (
            Opinion(Saying.BELOW, 260e9, 459e9, "links", variables=("NCCL_P2P_DISABLE=1", "NCCL_ALGO=ring")),
            Reason.BELOW,
            f"worse than expected ({BOUNDS})",
            [MODEL, "set here: NCCL_P2P_DISABLE=1, NCCL_ALGO=ring", DOCTOR],
        ),
        (
            Opinion(Saying.ABOVE, 260e9, 459e9, "links"),
            Reason.ABOVE_MODEL,
            f"better than the hardware allows ({BOUNDS})",
            [MODEL, "look at the measurement"],
        ),
        (
            Opinion(Saying.NONE, why="no peak is known"),
            Reason.NOT_JUDGED,
            f"no baseline on {KEY}",
            ["nothing says what it should be: no peak is known"],
        ),
        (
            Opinion(Saying.PLAUSIBLE, None, 459e9, "links"),
            Reason.PLAUSIBLE,
            f"no baseline on {KEY}",
            ["a model of the hardware expects at most 459.0 GB/s (links)", "it is plausible"],
        ),
        (
            Opinion(Saying.BELOW, 330e9, source="9 launches on 4 machines of this kind", usual=350e9, seen=0.064),
            Reason.BELOW,
            "worse than expected (at least 330.0 GB/s)",
            ["9 launches on 4 machines of this kind show at least 330.0 GB/s, usually 350.0 GB/s", DOCTOR],
        ),
    ],
)
def test_what_is_expected_is_there(said: Opinion, reason: Reason, what: str, details: list[str]) -> None:
    lines = describe(replace(NO_RECORD, opinion=said, reason=reason), COMMANDS)
    assert lines == [f"busbw 298.0 GB/s: {what}", *details, f"record one with: {RECORD}"]


def test_a_figure_that_is_below_in_three_launches_says_so() -> None:
    below = replace(NO_RECORD, opinion=Opinion(Saying.BELOW, 330e9), reason=Reason.BELOW, launches=3)
    assert "median of 3 launches" in describe(below, COMMANDS)


def test_what_differs_from_the_record_is_a_line_of_a_figure_that_is_not_the_same() -> None:
    differs = {"nccl": ("2.28.9", "2.29.0"), "NCCL_MAX_NCHANNELS": ("", "12")}
    line = "what differs: NCCL_MAX_NCHANNELS not set -> 12, nccl 2.28.9 -> 2.29.0"
    assert line in describe(replace(REGRESSED, differs=differs), COMMANDS)
    assert line not in describe(replace(RACED, outcome=Outcome.ENVIRONMENT, differs=differs), COMMANDS)


def test_the_summary_says_who_judged_the_figures_without_a_baseline() -> None:
    by_model = replace(NO_RECORD, reason=Reason.PLAUSIBLE, opinion=Opinion(Saying.PLAUSIBLE, 260e9))
    by_machines = replace(by_model, opinion=Opinion(Saying.PLAUSIBLE, 260e9, source="9 launches"))
    by_nobody = replace(NO_RECORD, reason=Reason.NOT_JUDGED, opinion=Opinion(Saying.NONE))
    assert describe_opinions([NO_RECORD, REGRESSED]) == []
    assert describe_opinions([by_model, by_machines, by_machines, by_nobody, REGRESSED]) == [
        "without a baseline: 2 metrics as machines of this kind show; 1 metric as a model of the hardware expects, "
        "which sees what is badly wrong; 1 metric not judged, since nothing says what they should be; "
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
    first, record = describe(replace(REGRESSED, metric=metric, outcome=Outcome.MISSING, reason=Reason.STALE), COMMANDS)
    assert first.endswith(f": stale baseline: {why}")
    assert record == f"record one with: {RECORD}"


@pytest.mark.parametrize(
    ("metric", "finding"),
    [
        (
            Metric(500e9, "B/s", "higher", limit=450e9, limit_name="18 NVLinks"),
            "500.0 GB/s: above the physical limit 450.0 GB/s of 18 NVLinks",
        ),
        (
            Metric(1e-3, "s", "lower", limit=2e-3),
            "1.000 ms: below the physical limit 2.000 ms",
        ),
    ],
)
def test_a_broken_measurement_says_what_it_exceeds(metric: Metric, finding: str) -> None:
    verdict = replace(REGRESSED, metric=metric, outcome=Outcome.INVALID, reason=Reason.ABOVE_LIMIT, baseline=None)
    assert describe(verdict, COMMANDS) == [f"busbw {finding}", "the measurement is broken"]


def test_one_launch_has_no_spread() -> None:
    single = replace(BASELINE, launches=BASELINE.launches[:1])
    assert "spread unknown from 1 launch; a loss of 5.0 % is seen" in describe(
        replace(REGRESSED, baseline=single), COMMANDS
    )


@pytest.mark.parametrize("outcome", Outcome)
def test_every_outcome_has_a_first_line_and_none_is_more_than_a_line(outcome: Outcome) -> None:
    known = KnownRegression("a\nslow\x1b[31m driver", date(2027, 1, 31))
    for verdict in (replace(REGRESSED, expected=known), replace(REGRESSED, baseline=None, change=None, bound=None)):
        lines = describe(replace(verdict, outcome=outcome), COMMANDS)
        assert lines[0].startswith("busbw 298.0 GB/s: ")
        assert not any("\n" in line or "\x1b" in line for line in lines)


TOLD = "thresholds relaxed: "


@pytest.mark.parametrize(
    ("policy", "lines"),
    [
        (Policy(), []),
        (Policy(minimum_slowdown=0.04, minimum_effect=0.01), []),
        (Policy(minimum_slowdown=9.0), [TOLD + "gpuperf_minimum_slowdown is 900.0 % (default 5.0 %)"]),
        (Policy(minimum_effect=0.02), [TOLD + "gpuperf_minimum_effect is 2.0 % (default 1.5 %)"]),
        (
            Policy(minimum_slowdown=9.0, minimum_effect=5.0),
            [
                TOLD + "gpuperf_minimum_slowdown is 900.0 % (default 5.0 %), "
                "gpuperf_minimum_effect is 500.0 % (default 1.5 %)"
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
        "the environment is slower, not the code: 2 metrics lost against the baseline, and the baseline's own code "
        "(abc1234) is as slow today; "
    )
    assert describe_shift(None, [lost, RACED, replace(lost, metric_name="time")]) == [
        f"{told}what differs: NCCL_ALGO not set -> Tree, nccl 2.28.9 -> 2.29.0"
    ]
    (line,) = describe_shift(None, [replace(lost, differs={})])
    assert line.endswith(
        "1 metric lost against the baseline, and the baseline's own code (abc1234) is as slow today; no version and no "
        "variable that is kept differs: look at the machine, its clocks and its neighbours"
    )
    assert describe_shift(None, [RACED]) == []


def test_a_run_that_moved_as_a_whole_is_one_finding() -> None:
    (line,) = describe_shift(0.021, [])
    assert line == (
        "the whole run is 2.1 % slower than its baseline, in two launches (the median of all metrics): the "
        "environment, or a change that slows or speeds up everything; --against=REF shows which"
    )
    (line,) = describe_shift(-0.03, [])
    assert line.startswith("the whole run is 3.0 % faster than its baseline")


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
    assert say_tripped([tripped]) == f"GPU GPU-1: {words}"


def test_a_gpu_of_a_cluster_is_named_with_its_node() -> None:
    tripped = [Tripped("GPU-1", Gate.POWER_BRAKE, node="gpu-b")]
    assert say_tripped(tripped) == "GPU GPU-1 of node gpu-b: power brake"


def test_the_gates_of_all_gpus_are_named() -> None:
    tripped = [Tripped("GPU-1", Gate.POWER_BRAKE), Tripped("GPU-2", Gate.XID, 48)]
    assert say_tripped(tripped) == "GPU GPU-1: power brake; GPU GPU-2: the driver reported Xid 48"


@pytest.mark.parametrize("outcome", Outcome)
def test_the_words_of_another_judge_are_all_that_is_said(outcome: Outcome) -> None:
    verdict = replace(RACED, outcome=outcome, reason=Reason.OWN_WORDS, detail="the lab is hot\nopen a window")
    assert describe(verdict, COMMANDS) == ["busbw 298.0 GB/s: the lab is hot", "open a window"]
    assert describe_shift(None, [verdict]) == []
    assert explain_not_judged(verdict) == ""
    told = describe_undecided([verdict], fails=True)
    assert told == [
        "undecided: the lab is hot open a window (1 metric); this fails the run; --undecided=warn lets it pass"
    ] * (outcome is Outcome.UNDECIDED)
