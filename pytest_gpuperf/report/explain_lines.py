"""Says what explains that metrics moved."""

from collections import Counter
from collections.abc import Mapping, Sequence

from pytest_gpuperf.report.units import format_count, format_value
from pytest_gpuperf.verdicts.explanation import Explained, Explanation
from pytest_gpuperf.verdicts.verdict import Verdict

_NEAR = 0.05  # relative; a metric may explain a loss and be better than its record


def describe_explanation(verdict: Verdict) -> str:
    """Return what explains that a metric moved, or does not; empty if nobody looked for it."""
    told = verdict.explanation
    if told is None:
        return ""
    untried = "".join(f"; not tried: {name}, because {why}" for name, why in told.untried.items())
    return f"{_say_finding(told, verdict)}{untried}"


def _say_finding(told: Explanation, verdict: Verdict) -> str:
    unit, causes = verdict.metric.unit, _join_causes(told.undone)
    value = "" if told.value is None else format_value(told.value, unit)
    undone = f"{_say_undone(told.undone)} {value}"
    center = None if verdict.baseline is None else verdict.baseline.center
    of_record = f"recorded {format_value(center, unit)}" if center else ""
    near = told.value is not None and center is not None and abs(told.value / center - 1) <= _NEAR
    of_them = f"; which of them is open: {told.problem}" if told.problem else ""
    match told.found:
        case Explained.EXPLAINED:
            return f"explained by {causes}: {undone}, {'as recorded' if near else of_record}{of_them}"
        case Explained.PARTLY:
            return f"partly explained by {causes}: {undone}, {of_record}{of_them}"
        case Explained.NOT:
            return f"not explained by {causes}: {undone} as well"
        case Explained.OPEN:
            return f"maybe explained by {causes}: {undone}, and launches differ too much to decide"
        case Explained.UNTRIED if told.problem:
            return f"not explained, since nothing was tried: {told.problem}"
        case Explained.UNTRIED:
            return "not explained: no variable that can be put back differs from the baseline"


def summarize_explanations(verdicts: Sequence[Verdict]) -> list[str]:
    """Return what the summary says of all metrics that moved: which variables explain how many of them.

    Args:
        verdicts: Of the run.
    """
    told = [one.explanation for one in verdicts if one.explanation is not None]
    explained = Counter(_join_causes(one.undone) for one in told if one.found is Explained.EXPLAINED)
    moved = format_count(len(told), "metric")
    return [f"{causes} explains {count} of {moved} that moved" for causes, count in explained.most_common()]


def _join_causes(undone: Mapping[str, tuple[str, str]]) -> str:
    return " and ".join(f"{name}={now}" if now else f"{name} not set" for name, (_, now) in undone.items())


def _say_undone(undone: Mapping[str, tuple[str, str]]) -> str:
    if any(then for then, _ in undone.values()):
        return f"with {' and '.join(f'{n}={then}' if then else f'{n} not set' for n, (then, _) in undone.items())}"
    return "without it" if len(undone) == 1 else "without them"
