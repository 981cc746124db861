"""One verdict as text: a first line that says what happened, and short lines with the details."""

from typing import Protocol, assert_never

from pytest_gpuperf.baselines.schema import MetricBaseline
from pytest_gpuperf.figures.comparable import find_mismatch
from pytest_gpuperf.figures.metric import Metric
from pytest_gpuperf.report.change import change_in_words, compute_stored_change, format_share
from pytest_gpuperf.report.one_line import make_one_line
from pytest_gpuperf.report.tripped import say_tripped
from pytest_gpuperf.report.units import format_count, format_percent, format_value
from pytest_gpuperf.report.why import explain_change
from pytest_gpuperf.verdicts.opinion import Saying
from pytest_gpuperf.verdicts.outcome import Outcome, Reason
from pytest_gpuperf.verdicts.rule import NOISY
from pytest_gpuperf.verdicts.share import Share
from pytest_gpuperf.verdicts.verdict import Verdict


class VerdictCommands(Protocol):
    """Makes the commands that a verdict ends with."""

    def record(self, identity: str, *more: str, mode: str = "") -> str:
        """Return the command that records a baseline for the test of a node id, with more options."""
        ...

    def bisect(self, identity: str, good: str) -> str:
        """Return the command that finds the commit after a good one that made the test slower; empty without one."""
        ...


def describe(verdict: Verdict, commands: VerdictCommands) -> list[str]:
    """Return a verdict as lines: the metric and what happened, then the details.

    Args:
        verdict: The verdict.
        commands: Makes the commands of its test.
    """
    return [format_first_line(verdict), *map(make_one_line, list_details(verdict, commands))]


def format_first_line(verdict: Verdict) -> str:
    """Return the metric and what happened to it, so short that pytest's summary shows it beside the test's name."""
    value = format_value(verdict.metric.value, verdict.metric.unit)
    return make_one_line(f"{verdict.metric_name} {value}: {describe_outcome(verdict)}")


def describe_outcome(verdict: Verdict) -> str:
    """Return what became of a metric, in a few words."""
    metric = verdict.metric
    if verdict.reason is Reason.OWN_WORDS:
        return verdict.detail.partition("\n")[0]
    match verdict.outcome:
        case Outcome.SAME:
            return f"the same as {_describe_reference(verdict)}"
        case Outcome.IMPROVED:
            return _say_move(verdict)
        case Outcome.REGRESSED:
            return f"{_say_move(verdict)}{_describe_culprit(verdict)}"
        case Outcome.ENVIRONMENT:
            return f"{_say_move(verdict)}, the environment"
        case Outcome.EXPECTED:
            known = verdict.expected
            return f"{_say_move(verdict)}, expected{'' if known is None else f' until {known.until}'}"
        case Outcome.UNDECIDED if verdict.reason is Reason.ASKED:
            return f"maybe below the {_say_what_was_asked(metric)} that the test requires"
        case Outcome.UNDECIDED:
            moved = "" if compute_stored_change(verdict) is None else f"{_say_move(verdict)}, "
            return f"{moved}undecided: {_explain_undecided(verdict)}"
        case Outcome.MISSED:
            return f"surely below the {_say_what_was_asked(metric)} that the test requires"
        case Outcome.MISSING:
            return _describe_missing(verdict)
        case Outcome.INVALID if verdict.reason is Reason.ABOVE_LIMIT:
            side = "above" if metric.better == "higher" else "below"
            limit = "" if metric.limit is None else f" {format_value(metric.limit, metric.unit)}"
            name = f" of {metric.limit_name}" if metric.limit_name else ""
            return f"{side} the physical limit{limit}{name}"
        case Outcome.INVALID:
            return f"the machine was not fit for the measurement, twice: {say_tripped(metric.invalid)}"
        case Outcome.RECORDED:
            return f"recorded as the baseline on {verdict.hardware_key}"
        case Outcome.UNJUDGED if verdict.reason is Reason.NOISY:
            moved = "" if compute_stored_change(verdict) is None else f"{_say_move(verdict)}, "
            return f"{moved}not judged: {_explain_unseen(verdict)}"
        case Outcome.UNJUDGED:
            return "not judged"
        case _:
            assert_never(verdict.outcome)


def list_details(verdict: Verdict, commands: VerdictCommands) -> list[str]:
    """Return how it is known what happened, what may have caused it, and what to do about it, a line each.

    Args:
        verdict: The verdict.
        commands: Makes the commands of its test.
    """
    if verdict.reason is Reason.OWN_WORDS:
        return verdict.detail.splitlines()[1:]
    match verdict.outcome:
        case Outcome.INVALID:
            return ["the measurement is broken"] if verdict.reason is Reason.ABOVE_LIMIT else []
        case Outcome.MISSED:
            return _format_interval(verdict)
        case Outcome.MISSING:
            return [*_describe_opinion(verdict), f"record one with: {commands.record(verdict.test)}"]
        case Outcome.UNJUDGED if verdict.reason is Reason.NOISY:
            return _describe_measurement(verdict)
        case Outcome.RECORDED | Outcome.UNJUDGED:
            return []
        case Outcome.UNDECIDED if verdict.reason is Reason.ASKED:
            return [*_format_interval(verdict), *_describe_measurement(verdict)]
    lines = [*_describe_measurement(verdict), *_explain_no_race(verdict)]
    if verdict.reason is Reason.CLEARED:
        lines.append(f"cleared by {format_count(verdict.launches, 'launch', 'launches')}")
    if verdict.detail:
        lines.append(f"not raced: {_shorten_detail(verdict.detail)}")
    if verdict.reason is Reason.CANNOT_RACE and verdict.baseline is not None:
        lines.append("the baseline has too few launches on these GPUs to decide alone")
    if verdict.expected is not None and verdict.outcome is not Outcome.SAME:
        at = verdict.expected.center
        center = "" if at is None else f" at {format_value(at, verdict.metric.unit)}"
        was = "" if verdict.outcome is Outcome.EXPECTED else "it was "
        lines.append(f"{was}expected{center} until {verdict.expected.until}: {verdict.expected.reason}")
    return [*lines, *explain_change(verdict), *_suggest_action(verdict, commands)]


def _say_move(verdict: Verdict) -> str:
    """Return by how much a metric differs from its baseline, or from the other code if it has none."""
    change, than, metric = compute_stored_change(verdict) or 0.0, _describe_reference(verdict), verdict.metric
    if verdict.outcome is Outcome.REGRESSED and verdict.code is not None and change > 0:
        change, than = verdict.code.change, verdict.against  # the machine is faster than it was when it was recorded
    return f"{change_in_words(change, metric.better, metric.unit)} than {than}"


def _describe_reference(verdict: Verdict) -> str:
    """Return what a metric is held against."""
    if verdict.baseline is not None:
        return format_value(verdict.baseline.center, verdict.baseline.unit)
    old = "" if verdict.old is None else format_value(verdict.old, verdict.metric.unit)
    return " of ".join(filter(None, (old, verdict.against))) or "the baseline"


def _explain_unseen(verdict: Verdict) -> str:
    """Return why a metric is only shown."""
    if verdict.bound is None or verdict.bound <= NOISY:
        return "it depends on the host, and the baseline does not know these GPUs"
    return f"a loss below {format_percent(verdict.bound)} would not be seen"


def _explain_no_race(verdict: Verdict) -> list[str]:
    """Return why a verdict needed no race, or counts less; nothing for others."""
    match verdict.reason:
        case Reason.GROSS:
            return ["more than machines of this kind differ by; a race would tell slower code from a slower machine"]
        case Reason.EXACT:
            return ["it is counted, and all launches of the baseline counted the same"]
        case Reason.ELSEWHERE:
            return ["a warning only, since the baseline does not know these GPUs; --environment=fail fails it"]
        case _:
            return []


def _describe_culprit(verdict: Verdict) -> str:
    if verdict.reason is Reason.GROSS and verdict.code is None:
        return ", because of the code or this machine"
    if verdict.reason is Reason.EXACT:
        return ", counted"
    if verdict.code is None:
        return ", by the baseline alone"
    first, *more = verdict.changed or ("",)
    name = first.rpartition("/")[2]  # the whole path is among the details
    files = f" ({name}{f' and {len(more)} more' if more else ''})" if name else ""
    # A race without a record may be one of two interpreters: only a changed file shows that it is the code.
    return f", because of the code{files}" if files or verdict.baseline is not None else ""


def _explain_undecided(verdict: Verdict) -> str:
    match verdict.reason:
        case Reason.BUDGET:
            return "time ran out"
        case Reason.CANNOT_RACE:
            return "it could not race"
        case Reason.OPEN:
            return f"{format_count(verdict.launches, 'launch differs', 'launches differ')} too much"
        case _:
            return "no later launch decided"


def _describe_missing(verdict: Verdict) -> str:
    said = verdict.opinion
    if verdict.reason is Reason.STALE:
        return f"stale baseline: {_explain_staleness(verdict)}"
    if said is not None and said.saying is Saying.BELOW:
        return f"worse than expected ({_format_bounds(verdict)})"
    if said is not None and said.saying is Saying.ABOVE:
        return f"better than the hardware allows ({_format_bounds(verdict)})"
    return f"no baseline on {verdict.hardware_key}"


def _describe_measurement(verdict: Verdict) -> list[str]:
    """Return the record's spread, and what each arm came to."""
    lines, metric, baseline = [], verdict.metric, verdict.baseline

    def share(of: Share, each: str = "") -> str:
        launches = f" in {format_count(of.launches, 'launch', 'launches')}{each}"
        return format_share(of, metric.better, metric.unit, metric.value, launches)

    if baseline is not None:
        where = ", none of them on these GPUs" if verdict.elsewhere else ""
        found = "" if verdict.bound is None else f"; a loss of {format_percent(verdict.bound)} is seen"
        lines.append(f"{_spread(baseline)}{where}{found}")
    if verdict.code is not None:
        lines.append(f"code {share(verdict.code, ' of each')}, against {verdict.against}")
    elif verdict.against:
        lines.append(f"code unchanged since {verdict.against}")
    if verdict.environment is not None:
        lines.append(f"environment {share(verdict.environment)}, against the baseline")
    return lines


def _suggest_action(verdict: Verdict, commands: VerdictCommands) -> list[str]:
    if verdict.outcome is Outcome.IMPROVED and verdict.code is None:
        return [f"adopt it with: {commands.record(verdict.test)}"]
    if verdict.outcome is Outcome.REGRESSED and verdict.code is not None:
        command = commands.bisect(verdict.test, verdict.against)
        return [f"bisect with: {command}"] if command else []
    if verdict.outcome is Outcome.UNDECIDED and verdict.reason is Reason.BUDGET:
        return ["raise --race-budget"]
    if verdict.outcome is Outcome.UNDECIDED and verdict.reason is Reason.OPEN:
        return ["run on a quieter machine, or time a longer step"]
    return []


def _shorten_detail(detail: str) -> str:
    """The first line and the last: between them may be what a process printed, whose last line says what it died of."""
    first, *others = detail.splitlines()
    return " ".join((first, *others[-1:]))


def _describe_opinion(verdict: Verdict) -> list[str]:
    """Return what references or a model of the hardware say of a metric that has no record."""
    said = verdict.opinion
    if said is None:
        return []
    if said.saying is Saying.NONE:
        return [f"nothing says what it should be: {said.why}"]
    lines = [describe_expectation(verdict)]
    if said.saying is Saying.PLAUSIBLE:
        strict = "" if verdict.reason is Reason.PLAUSIBLE else "; --strict-baselines requires a baseline"
        lines.append(f"it is plausible{strict}")
    elif said.saying is Saying.BELOW:
        if verdict.launches > 1:
            lines.append(f"median of {verdict.launches} launches")
        if said.variables:
            lines.append(f"set here: {', '.join(said.variables)}")
        lines.append("look for the cause with: python -m pytest_gpuperf doctor")
    else:
        lines.append("look at the measurement")
    return lines


def describe_expectation(verdict: Verdict) -> str:
    """Return what is expected of a metric that has no record, and by whom; empty if nothing is."""
    said, unit, bounds = verdict.opinion, verdict.metric.unit, _format_bounds(verdict)
    if said is None or said.saying is Saying.NONE:
        return ""
    if not said.source:
        return f"a model of the hardware expects {bounds} ({said.component})"
    usual = "" if said.usual is None else f", usually {format_value(said.usual, unit)}"
    return f"{said.source} show {bounds}{usual}"


def _format_bounds(verdict: Verdict) -> str:
    said, unit = verdict.opinion, verdict.metric.unit
    if said is None:
        return ""
    bounds = " to ".join(format_value(bound, unit) for bound in (said.low, said.high) if bound is not None)
    if said.low is None or said.high is None:
        return f"{'at most' if said.low is None else 'at least'} {bounds}"
    return bounds


def _say_what_was_asked(metric: Metric) -> str:
    return format_value(metric.at_least or 0.0, metric.unit)


def _format_interval(verdict: Verdict) -> list[str]:
    """Return the bounds of a metric that its test asks something of."""
    metric = verdict.metric
    if metric.interval is None:
        return []
    low, high = (format_value(end, metric.unit) for end in metric.interval)
    launches = "" if verdict.launches == 1 else f", median of {verdict.launches} launches"
    return [f"95 % on each side: {low} to {high}{launches}"]


def _spread(baseline: MetricBaseline) -> str:
    launches = len(baseline.launches)
    if launches == 1:
        return "spread unknown from 1 launch"
    return f"spread {format_percent(baseline.sigma_b)} over {launches} launches"


def _explain_staleness(verdict: Verdict) -> str:
    metric, baseline = verdict.metric, verdict.baseline
    if baseline is not None:
        match find_mismatch(metric, baseline):
            case "unit":
                return f"it is in {baseline.unit!r}, the test now in {metric.unit!r}"
            case "better":
                return f"there {baseline.better!r} was better, in the test now {metric.better!r}"
            case "clock":
                return f"it was timed by {baseline.clock!r}, the test is now by {metric.clock!r}"
    return "the test's body has changed since"
