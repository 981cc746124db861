"""One verdict as one line of text."""

from collections.abc import Mapping, Sequence
from typing import Protocol, assert_never

from pytest_gpuperf.baselines.merge import Mode
from pytest_gpuperf.baselines.reviewed import MetricPolicy
from pytest_gpuperf.baselines.schema import MetricBaseline
from pytest_gpuperf.figures.conditions import Gate, Tripped
from pytest_gpuperf.figures.metric import Metric
from pytest_gpuperf.report.one_line import one_line
from pytest_gpuperf.report.units import format_percent, format_value
from pytest_gpuperf.verdicts.outcome import Outcome
from pytest_gpuperf.verdicts.rule import Policy
from pytest_gpuperf.verdicts.verdict import Verdict


class RecordCommand(Protocol):
    """Makes the command that records a baseline."""

    def __call__(self, identity: str, *more: str, mode: str = "") -> str:
        """For the test of a node id, with more options, in a mode of the update."""
        ...


def describe(verdict: Verdict, record_command: RecordCommand) -> str:
    """Says in one line what a verdict found, against what, and what to do about it.

    Args:
        verdict: The verdict.
        record_command: Makes the command that records a baseline for its test.
    """
    return one_line(f"{verdict.test} {verdict.metric_name}: {_finding(verdict, record_command)}")


def shift_lines(shift: float | None, moved: Mapping[str, float]) -> list[str]:
    """What the summary says of a run whose figures moved all alike, or whose control workload did.

    Args:
        shift: The median change of all figures, slower above 0; None if they did not move alike.
        moved: The control workload's changes, by name.
    """
    lines = [
        f"the control workload, {name}, is {_faster_or_slower(change)} than in the launches of the baselines: the "
        "machine or the software under all tests, not their programs"
        for name, change in moved.items()
    ]
    if shift is None:
        return lines
    return [
        *lines,
        f"the whole run is {_faster_or_slower(shift)} than its baselines (the "
        "median of all figures): another machine or software, or a change that slows everything; only figures that "
        "moved otherwise were judged by themselves",
    ]


def run_policy_lines(policy: Policy, verdicts: Sequence[Verdict]) -> list[str]:
    """What the summary says of a run that asks for less than usual, if a figure was held against its baseline.

    Args:
        policy: The run's.
        verdicts: Of the run.
    """
    usual = Policy()
    bounds = (
        (policy.detect, usual.detect, "is to be found"),
        (policy.min_effect, usual.min_effect, "is no regression"),
    )
    less = [
        f"slower by {format_percent(bound)} {what} (usually {format_percent(default)})"
        for bound, default, what in bounds
        if bound > default
    ]
    if not less or all(verdict.change is None for verdict in verdicts):
        return []
    return [f"by gpuperf_tolerance and gpuperf_min_effect this run asks for less than usual: {', '.join(less)}"]


def policy_in_words(policy: MetricPolicy) -> str:
    """What a metric's own policy asks for, and why."""
    bounds = {"is to be found": policy.detect, "is no regression": policy.min_effect}
    said = (f"slower by {format_percent(bound)} {what}" for what, bound in bounds.items() if bound is not None)
    return f"{', '.join(said)}: {policy.reason}"


def tripped_in_words(tripped: Sequence[Tripped]) -> str:
    """Why a machine was not fit for a measurement."""
    return "; ".join(f"GPU {one.gpu}: {_problem(one)}" for one in tripped)


def _problem(tripped: Tripped) -> str:
    got, expected = tripped.got or 0, tripped.expected or 0
    match tripped.gate:
        case (
            Gate.HARDWARE_SLOWDOWN | Gate.SOFTWARE_THERMAL_SLOWDOWN | Gate.HARDWARE_THERMAL_SLOWDOWN | Gate.POWER_BRAKE
        ):
            return str(tripped.gate.value)
        case Gate.OTHER_PROCESSES:
            return f"{got:.0f} other process{'es' if got > 1 else ''} computed on it"
        case Gate.LOST_NVLINKS:
            return f"{got:.0f} NVLinks were active, {expected:.0f} when the run began"
        case Gate.MEMORY_ERRORS:
            return f"{got:.0f} uncorrected memory errors"
        case Gate.LITTLE_MEMORY:
            return f"{got / 1024**2:.0f} MiB of memory were free"
        case Gate.SLOW_CLOCK:
            return f"its SM clock fell from {expected / 1e6:.0f} to {got / 1e6:.0f} MHz"
        case Gate.XID:
            return f"the driver reported Xid {got:.0f}"
        case _:
            assert_never(tripped.gate)


def _faster_or_slower(change: float) -> str:
    return f"{format_percent(abs(change))} {'slower' if change > 0 else 'faster'}"


def _finding(verdict: Verdict, record_command: RecordCommand) -> str:
    metric, key = verdict.metric, verdict.hardware_key
    value = format_value(metric.value, metric.unit)
    match verdict.outcome:
        case Outcome.SAME:
            return f"{value} is the same as {_against(verdict)}"
        case Outcome.IMPROVED:
            gain = _change(verdict)
            return f"{value} is {gain} better than {_against(verdict)}; adopt it with: {record_command(verdict.test)}"
        case Outcome.REGRESSED:
            return f"{value} is {_change(verdict)} worse than {_against(verdict)}{_beyond(verdict)}"
        case Outcome.EXPECTED:
            known = verdict.expected
            why = "" if known is None else f", as is expected until {known.until}: {known.reason}"
            return f"{value} is {_change(verdict)} worse than {_against(verdict)}{why}"
        case Outcome.SUSPECT:
            return (
                f"{value} is {_change(verdict)} worse than {_against(verdict)} in one launch, and the run ended before "
                "others decided"
            )
        case Outcome.SHIFTED:
            return f"{value} is {_change(verdict)} worse than {_against(verdict)}, {_with_the_machine(verdict)}"
        case Outcome.UNDECIDED:
            return (
                f"{value} is {_worse_or_better(verdict)} than {_against(verdict)}, and {_hidden(verdict)}; "
                f"{_cure(verdict, record_command)}"
            )
        case Outcome.MISSING:
            return f"{value} has no baseline on {key}; record one with: {record_command(verdict.test)}"
        case Outcome.STALE:
            why = _staleness(verdict)
            return f"{value} has a stale baseline on {key}: {why}; record it again with: {record_command(verdict.test)}"
        case Outcome.INVALID:
            return (
                f"{value} was measured on a machine that was not fit for it, twice: {tripped_in_words(metric.invalid)}"
            )
        case Outcome.BROKEN:
            side = "above" if metric.better == "higher" else "below"
            limit = "" if metric.limit is None else f" {format_value(metric.limit, metric.unit)}"
            name = f" of {metric.limit_name}" if metric.limit_name else ""
            return f"{value} is {side} the physical limit{limit}{name}: the measurement is broken"
        case Outcome.MISSED | Outcome.DOUBTFUL:
            sure = "is surely below" if verdict.outcome is Outcome.MISSED else "may be below"
            fresh = "" if verdict.interval is None else f", median of {verdict.launches} fresh launches,"
            asked = format_value(metric.at_least or 0.0, metric.unit)
            return f"{value}{_interval(metric)}{fresh} {sure} the {asked} asked for"
        case Outcome.RECORDED:
            return f"{value} recorded as the baseline on {key}"
        case Outcome.UNJUDGED:
            return f"{value} on {key}, not judged"
        case _:
            assert_never(verdict.outcome)


def _with_the_machine(verdict: Verdict) -> str:
    if verdict.control is None:
        return "as most figures of this run are"
    slower = f"and the control workload {format_percent(verdict.control)} slower"
    if verdict.of_the_gpus:
        return f"{slower}, which may be why: GPUs of one kind differ at their power limit"
    return f"{slower}: the machine, or what is under all tests"


def _cure(verdict: Verdict, record_command: RecordCommand) -> str:
    less = 'let less be found of it, by "policy" in the baselines'
    if verdict.needed is None or verdict.more is None:
        return f"no number of recorded ones would do: make the measurement quieter, or {less}"
    command = record_command(verdict.test, f"--launches={verdict.more}", mode=Mode.APPEND.value)
    return f"its baseline needs {verdict.needed} launches, so add {verdict.more} or more: {command}; or {less}"


def _interval(metric: Metric) -> str:
    if metric.interval is None:
        return ""
    low, high = metric.interval
    return f" (95 % on each side: {format_value(low, metric.unit)} to {format_value(high, metric.unit)})"


def _change(verdict: Verdict) -> str:
    return format_percent(abs(verdict.change or 0.0))


def _worse_or_better(verdict: Verdict) -> str:
    return f"{_change(verdict)} {'better' if (verdict.change or 0.0) > 0 else 'worse'}"


def _hidden(verdict: Verdict) -> str:
    if verdict.interval is None:
        return "no number of fresh launches could tell such a loss from its spread"
    loss = "a loss of any size" if verdict.bound is None else f"a loss of less than {format_percent(verdict.bound)}"
    return f"{loss} could hide from {verdict.launches} fresh launches in its spread"


def _beyond(verdict: Verdict) -> str:
    known = verdict.expected
    if known is None:
        return ""
    at = "" if known.center is None else f" at {format_value(known.center, verdict.metric.unit)}"
    return f"; it was expected{at} until {known.until}: {known.reason}"


def _against(verdict: Verdict) -> str:
    baseline = verdict.baseline
    if baseline is None:
        return f"the baseline on {verdict.hardware_key}"
    bound = "" if verdict.bound is None else f", bound {format_percent(verdict.bound)}"
    center = format_value(baseline.center, baseline.unit)
    fresh = f", median of {verdict.launches} fresh launches" if verdict.interval is not None else ""
    where = ", none on these very GPUs" if verdict.elsewhere else ""
    return (
        f"the baseline {center} ({_spread(baseline)}{where}{bound}{fresh}{_asked(verdict)}) on {verdict.hardware_key}"
    )


def _asked(verdict: Verdict) -> str:
    own = verdict.policy
    return "" if own is None else f"; by its own policy {policy_in_words(own)}"


def _spread(baseline: MetricBaseline) -> str:
    launches = len(baseline.launches)
    if launches == 1:
        return "spread unknown from 1 launch"
    return f"spread {format_percent(baseline.sigma_b)} over {launches} launches"


def _staleness(verdict: Verdict) -> str:
    metric, baseline = verdict.metric, verdict.baseline
    if baseline is not None:
        if metric.unit != baseline.unit:
            return f"it is in {baseline.unit!r}, the test now in {metric.unit!r}"
        if metric.better != baseline.better:
            return f"there {baseline.better!r} was better, in the test now {metric.better!r}"
        if metric.clock and baseline.clock and metric.clock != baseline.clock:
            return f"it was timed by {baseline.clock!r}, the test is now by {metric.clock!r}"
    return "the test's body has changed since"
