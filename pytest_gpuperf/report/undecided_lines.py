"""What the summary says of metrics that a run left undecided or only shows: why, and what would decide them."""

from collections import Counter
from collections.abc import Sequence

from pytest_gpuperf.report.units import format_count, format_percent
from pytest_gpuperf.verdicts.outcome import Outcome, Reason
from pytest_gpuperf.verdicts.rule import NOISY
from pytest_gpuperf.verdicts.verdict import Verdict


def describe_undecided(verdicts: Sequence[Verdict], *, fails: bool) -> list[str]:
    """Return one line for all undecided metrics of a run, with each cure once; none if all are decided.

    Args:
        verdicts: Of the run.
        fails: Whether the run fails by them.
    """
    cures = Counter(_describe_cure(one) for one in verdicts if one.outcome is Outcome.UNDECIDED)
    if not cures:
        return []
    told = "; ".join(f"{cure} ({format_count(count, 'metric')})" for cure, count in cures.most_common())
    if any(is_unraced(one) for one in verdicts):
        ends = "this fails the run, which was to race"
    elif fails:
        ends = "this fails the run; --undecided=warn lets it pass"
    else:
        ends = "the run does not fail by it; --undecided=fail changes that"
    return [f"undecided: {told}; {ends}"]


def is_unraced(verdict: Verdict) -> bool:
    """Whether a metric that has no record to be held against could not race."""
    return verdict.reason is Reason.CANNOT_RACE and verdict.baseline is None


def describe_noisy(verdicts: Sequence[Verdict]) -> list[str]:
    """Return one line for the metrics that have a record and are only shown; none if there is no such metric.

    Args:
        verdicts: Of the run.
    """
    count = sum(one.reason is Reason.NOISY for one in verdicts)
    if not count:
        return []
    return [
        f"too noisy to judge well: {format_count(count, 'metric')}: launches or machines differ so much that a loss of "
        f"{format_percent(NOISY)} could be missed; a metric fails only if it loses half of its speed"
    ]


def _describe_cure(verdict: Verdict) -> str:
    match verdict.reason:
        case Reason.ASKED:
            return "run on a quieter machine, time a longer step, or lower at_least="
        case Reason.BUDGET:
            return "time ran out: raise --race-budget"
        case Reason.CANNOT_RACE:
            why = " ".join(verdict.detail.split())
            record = "" if is_unraced(verdict) else "; or record these GPUs with --update-baselines=append"
            return f"it could not race: {why}{record}"
        case Reason.OWN_WORDS:
            return " ".join(verdict.detail.split())
        case Reason.OPEN:
            return "its launches differ too much: run on a quieter machine, or time a longer step"
        case _:
            return "no later launch decided: let the run end; a run without races makes none"
