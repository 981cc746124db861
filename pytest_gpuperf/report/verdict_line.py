"""One verdict as one line of text."""

from collections.abc import Sequence
from typing import Protocol, assert_never

from pytest_gpuperf.baselines.schema import MetricBaseline
from pytest_gpuperf.figures.conditions import Gate, Tripped
from pytest_gpuperf.figures.metric import Metric
from pytest_gpuperf.model.opinion import Saying
from pytest_gpuperf.report.one_line import one_line
from pytest_gpuperf.report.units import format_count, format_percent, format_value
from pytest_gpuperf.report.why import differing_in_words, why
from pytest_gpuperf.verdicts.outcome import Outcome, Reason
from pytest_gpuperf.verdicts.rule import Policy
from pytest_gpuperf.verdicts.share import Share
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
    parts = [_finding(verdict, record_command), *why(verdict)]
    return one_line(f"{verdict.test} {verdict.metric_name}: {'; '.join(parts)}")


def reasons(verdict: Verdict) -> list[str]:
    """Return why a figure came to its outcome, a line each; empty if its value and change say all."""
    metric, baseline, known = verdict.metric, verdict.baseline, verdict.expected
    match verdict.outcome:
        case Outcome.INVALID if verdict.reason is not Reason.ABOVE_LIMIT:
            return [f"the machine was not fit for the measurement, twice: {tripped_in_words(metric.invalid)}"]
        case Outcome.INVALID:
            limit = format_value(metric.limit or 0.0, metric.unit)
            return [f"beyond the physical limit {limit}: the measurement is broken"]
        case Outcome.MISSED:
            return [f"surely below the {_asked_for(metric)} asked for{_interval(metric)}"]
        case Outcome.REGRESSED | Outcome.ENVIRONMENT | Outcome.IMPROVED | Outcome.EXPECTED | Outcome.UNDECIDED:
            lines = []
            if baseline is not None:
                where = ", none of them on these GPUs" if verdict.elsewhere else ""
                lines.append(f"baseline {format_value(baseline.center, baseline.unit)}, {_spread(baseline)}{where}")
            if verdict.code is not None:
                lines.append(f"code {_share(verdict.code, 'of each')}, against {verdict.against}")
            elif verdict.against:
                lines.append(f"code unchanged since {verdict.against}")
            if verdict.environment is not None:
                lines.append(f"environment {_share(verdict.environment)}, against the record")
            if verdict.outcome is Outcome.UNDECIDED:
                lines.append(_why_undecided(verdict))
            elif verdict.detail:
                lines.append(f"not raced: {_in_short(verdict.detail)}")
            if known is not None:
                lines.append(f"expected until {known.until}: {known.reason}")
            return [*lines, *why(verdict)]
        case Outcome.MISSING if verdict.reason in (Reason.BELOW, Reason.ABOVE_MODEL):
            return [_expected(verdict).removeprefix(" and is ")]
        case _:
            return []


def _why_undecided(verdict: Verdict) -> str:
    match verdict.reason:
        case Reason.ASKED:
            return f"may be below the {_asked_for(verdict.metric)} asked for{_interval(verdict.metric)}"
        case Reason.BUDGET:
            return "no time was left to decide: raise --race-budget"
        case Reason.CANNOT_RACE:
            return f"it could not race: {_in_short(verdict.detail)}"
        case Reason.OPEN:
            launches = format_count(verdict.launches, "launch", "launches")
            return f"{launches} did not decide, since they differ too much: make the measurement quieter"
        case _:
            return "the run ended before other launches decided"


def _in_short(detail: str) -> str:
    """The first line and the last: between them may be what a process printed, whose last line says what it died of."""
    first, *others = detail.splitlines()
    return " ".join((first, *others[-1:]))


def run_lines(shift: float | None, verdicts: Sequence[Verdict]) -> list[str]:
    """What the summary says of a run that moved as a whole, and of losses that are the environment's.

    Args:
        shift: The median change of all figures, slower above 0; None if they did not move alike.
        verdicts: Of the run.
    """
    lines = []
    if shift is not None:
        lines.append(
            f"the whole run is {format_percent(abs(shift))} {'slower' if shift > 0 else 'faster'} than its record, in "
            "two launches (the median of all figures): the environment, or a change that slows or speeds up "
            "everything; --against tells which"
        )
    lost = [verdict for verdict in verdicts if verdict.outcome is Outcome.ENVIRONMENT]
    if lost:
        raced = ", ".join(dict.fromkeys(verdict.against for verdict in lost))
        differs = {name: change for verdict in lost for name, change in verdict.differs.items()}
        lines.append(
            f"the environment is slower, not the code: {format_count(len(lost), 'figure')} lost against the record, "
            f"and the record's own code ({raced}) is as slow today; {differing_in_words(differs)}"
        )
    return lines


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


def tripped_in_words(tripped: Sequence[Tripped]) -> str:
    """Why a machine was not fit for a measurement."""
    return "; ".join(f"GPU {one.gpu}{f' of node {one.node}' if one.node else ''}: {_problem(one)}" for one in tripped)


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


def _finding(verdict: Verdict, record_command: RecordCommand) -> str:
    metric, key = verdict.metric, verdict.hardware_key
    value = format_value(metric.value, metric.unit)
    match verdict.outcome:
        case Outcome.SAME:
            return f"{value} is the same as {_against(verdict)}{_not_reproduced(verdict)}"
        case Outcome.IMPROVED if verdict.code is not None:
            return f"{value}: {_raced(verdict)}"
        case Outcome.IMPROVED:
            gain = _change(verdict)
            return f"{value} is {gain} better than {_against(verdict)}; adopt it with: {record_command(verdict.test)}"
        case Outcome.REGRESSED if verdict.code is not None:
            than = "" if verdict.baseline is None else f" is {_worse_or_better(verdict)} than {_against(verdict)}"
            return f"{value}{than}: {_raced(verdict)}{_beyond(verdict)}"
        case Outcome.REGRESSED:
            not_raced = f"; it was not raced: {verdict.detail}" if verdict.detail else ""
            return f"{value} is {_worse_or_better(verdict)} than {_against(verdict)}{_beyond(verdict)}{not_raced}"
        case Outcome.ENVIRONMENT:
            return f"{value} is {_worse_or_better(verdict)} than {_against(verdict)}: {_raced(verdict)}"
        case Outcome.EXPECTED:
            known = verdict.expected
            why = "" if known is None else f", as is expected until {known.until}: {known.reason}"
            return f"{value} is {_worse_or_better(verdict)} than {_against(verdict)}{why}"
        case Outcome.UNDECIDED:
            return f"{value} {_undecided(verdict)}"
        case Outcome.MISSING if verdict.reason is Reason.STALE:
            why = _staleness(verdict)
            return f"{value} has a stale baseline on {key}: {why}; record it again with: {record_command(verdict.test)}"
        case Outcome.MISSING:
            said = _expected(verdict)
            return f"{value} has no baseline on {key}{said}; record one with: {record_command(verdict.test)}"
        case Outcome.INVALID if verdict.reason is Reason.ABOVE_LIMIT:
            side = "above" if metric.better == "higher" else "below"
            limit = "" if metric.limit is None else f" {format_value(metric.limit, metric.unit)}"
            name = f" of {metric.limit_name}" if metric.limit_name else ""
            return f"{value} is {side} the physical limit{limit}{name}: the measurement is broken"
        case Outcome.INVALID:
            return (
                f"{value} was measured on a machine that was not fit for it, twice: {tripped_in_words(metric.invalid)}"
            )
        case Outcome.MISSED:
            return f"{value}{_interval(metric)}{_fresh(verdict)} is surely below the {_asked_for(metric)} asked for"
        case Outcome.RECORDED:
            return f"{value} recorded as the baseline on {key}"
        case Outcome.UNJUDGED:
            return f"{value} on {key}, not judged"
        case _:
            assert_never(verdict.outcome)


def _expected(verdict: Verdict) -> str:
    """What references or a model of the hardware say of a figure that has no record."""
    said = verdict.opinion
    if said is None:
        return ""
    if said.saying is Saying.NONE:
        return f", and nothing says what it should be: {said.why}"
    expected = expectation(verdict)
    if said.saying is Saying.PLAUSIBLE:
        strict = verdict.reason is not Reason.PLAUSIBLE
        return f"; {expected}, so it is plausible{', and --strict-baselines asks for a record' if strict else ''}"
    if said.saying is Saying.BELOW:
        is_set = f"; set here: {', '.join(said.variables)}" if said.variables else ""
        launches = f" (median of {verdict.launches} launches)" if verdict.launches > 1 else ""
        worse = f"worse than expected{launches}: {expected}{is_set}"
        return f" and is {worse}; look for the cause with: python -m pytest_gpuperf doctor"
    return f" and is better than the hardware allows: {expected}; look at the measurement"


def expectation(verdict: Verdict) -> str:
    """Return what is expected of a figure that has no record, and by whom; empty if nothing is."""
    said, unit = verdict.opinion, verdict.metric.unit
    if said is None or said.saying is Saying.NONE:
        return ""
    bounds = " to ".join(format_value(bound, unit) for bound in (said.low, said.high) if bound is not None)
    if said.low is None or said.high is None:
        bounds = f"{'at most' if said.low is None else 'at least'} {bounds}"
    if not said.source:
        return f"a model of the hardware expects {bounds} ({said.component})"
    usual = "" if said.usual is None else f", usually {format_value(said.usual, unit)}"
    return f"{said.source} show {bounds}{usual}"


def opinion_lines(verdicts: Sequence[Verdict]) -> list[str]:
    """What the summary says of figures that no record judged.

    Args:
        verdicts: Of the run.
    """
    opinions = [one.opinion for one in verdicts if one.reason is Reason.PLAUSIBLE and one.opinion is not None]
    by_references = sum(bool(opinion.source) for opinion in opinions)
    shown = sum(verdict.reason is Reason.NOT_JUDGED for verdict in verdicts)
    told = [
        f"{format_count(count, 'figure')} {what}"
        for count, what in (
            (by_references, "as machines of this kind show"),
            (len(opinions) - by_references, "as a model of the hardware expects, which sees what is badly wrong"),
            (shown, "not judged, since nothing says what they should be"),
        )
        if count
    ]
    if not told:
        return []
    return [f"without a baseline: {'; '.join(told)}; --strict-baselines, the default in CI, fails them"]


def _undecided(verdict: Verdict) -> str:
    recorded = verdict.baseline is not None
    than = f"is {_worse_or_better(verdict)} than {_against(verdict)}" if recorded else "was raced"
    match verdict.reason:
        case Reason.ASKED:
            asked = _asked_for(verdict.metric)
            return f"{_interval(verdict.metric).strip()}{_fresh(verdict)} may be below the {asked} asked for"
        case Reason.BUDGET:
            what = than if recorded else "was not decided"
            return f"{what}, and no time was left to decide: raise --race-budget"
        case Reason.CANNOT_RACE if verdict.baseline is None:
            return f"was not raced: {verdict.detail}"
        case Reason.CANNOT_RACE:
            return (
                f"{than}, and nothing can decide why: no race, since {verdict.detail}; and the record has too few "
                "launches on these GPUs to decide alone"
            )
        case Reason.OPEN:
            raced = f": {_raced(verdict)}" if verdict.code is not None else f", without a race: {verdict.detail}"
            launches = format_count(verdict.launches, "launch", "launches")
            return (
                f"{than}, and {launches} did not decide, as they differ too much{raced}; make the measurement quieter"
            )
        case _:
            one = f"{than} in one launch" if recorded else "was not decided"
            return f"{one}, and the run ended before others decided"


def _raced(verdict: Verdict) -> str:
    """What both arms came to, as changes of the figure: above 0 is better."""
    told = []
    if verdict.code is not None:
        told.append(f"the code {_share(verdict.code, 'of each')} against {verdict.against}")
    elif verdict.against:
        told.append(f"the code unchanged since {verdict.against}")
    if verdict.environment is not None:
        told.append(f"the environment {_share(verdict.environment)} against the record")
    return ", ".join(told)


def _share(share: Share, of: str = "") -> str:
    low, high = (format_percent(end, signed=True) for end in share.interval)
    launches = f"{format_count(share.launches, 'launch', 'launches')} {of}".rstrip()
    return f"{format_percent(share.change, signed=True)} ({low} to {high} in {launches})"


def _not_reproduced(verdict: Verdict) -> str:
    if raced := _raced(verdict):
        return f": {raced}"
    return f", by {format_count(verdict.launches, 'launch', 'launches')}" if verdict.reason is Reason.CLEARED else ""


def _fresh(verdict: Verdict) -> str:
    return "" if verdict.launches == 1 else f", median of {verdict.launches} launches,"


def _asked_for(metric: Metric) -> str:
    return format_value(metric.at_least or 0.0, metric.unit)


def _interval(metric: Metric) -> str:
    if metric.interval is None:
        return ""
    low, high = metric.interval
    return f" (95 % on each side: {format_value(low, metric.unit)} to {format_value(high, metric.unit)})"


def _change(verdict: Verdict) -> str:
    return format_percent(abs(verdict.change or 0.0))


def _worse_or_better(verdict: Verdict) -> str:
    return f"{_change(verdict)} {'better' if (verdict.change or 0.0) > 0 else 'worse'}"


def _beyond(verdict: Verdict) -> str:
    known = verdict.expected
    if known is None:
        return ""
    at = "" if known.center is None else f" at {format_value(known.center, verdict.metric.unit)}"
    return f"; it was expected{at} until {known.until}: {known.reason}"


def _against(verdict: Verdict) -> str:
    baseline = verdict.baseline
    if baseline is None:
        return verdict.against or f"the baseline on {verdict.hardware_key}"
    bound = "" if verdict.bound is None else f", a loss of {format_percent(verdict.bound)} is seen"
    center = format_value(baseline.center, baseline.unit)
    where = ", none on these very GPUs" if verdict.elsewhere else ""
    return f"the baseline {center} ({_spread(baseline)}{where}{bound}) on {verdict.hardware_key}"


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
