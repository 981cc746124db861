"""What the summary says of all verdicts of a run together."""

from collections.abc import Sequence

from pytest_gpuperf.report.units import format_count, format_percent
from pytest_gpuperf.report.why import describe_differing
from pytest_gpuperf.verdicts.outcome import Outcome, Reason
from pytest_gpuperf.verdicts.rule import Policy
from pytest_gpuperf.verdicts.verdict import Verdict


def describe_shift(shift: float | None, verdicts: Sequence[Verdict]) -> list[str]:
    """What the summary says of a run that moved as a whole, and of losses that are the environment's.

    Args:
        shift: The median change of all metrics, slower above 0; None if they did not move alike.
        verdicts: Of the run.
    """
    lines = []
    if shift is not None:
        lines.append(
            f"the whole run is {format_percent(abs(shift))} {'slower' if shift > 0 else 'faster'} than its baseline, "
            "in two launches (the median of all metrics): the environment, or a change that slows or speeds up "
            "everything; --against=REF shows which"
        )
    lost = [
        verdict
        for verdict in verdicts
        if verdict.outcome is Outcome.ENVIRONMENT and verdict.reason is not Reason.OWN_WORDS
    ]
    if lost:
        raced = ", ".join(dict.fromkeys(verdict.against for verdict in lost))
        differs = {name: change for verdict in lost for name, change in verdict.differs.items()}
        lines.append(
            f"the environment is slower, not the code: {format_count(len(lost), 'metric')} lost against the baseline, "
            f"and the baseline's own code ({raced}) is as slow today; {describe_differing(differs)}"
        )
    return lines


def run_policy_lines(policy: Policy, verdicts: Sequence[Verdict]) -> list[str]:
    """Returns the line about a policy that finds less than usual, if the run compared a metric with its baseline.

    Args:
        policy: The run's.
        verdicts: Of the run.
    """
    usual = Policy()
    bounds = (
        ("gpuperf_minimum_slowdown", policy.minimum_slowdown, usual.minimum_slowdown),
        ("gpuperf_minimum_effect", policy.minimum_effect, usual.minimum_effect),
    )
    less = [
        f"{key} is {format_percent(bound)} (default {format_percent(default)})"
        for key, bound, default in bounds
        if bound > default
    ]
    if not less or all(verdict.change is None for verdict in verdicts):
        return []
    return [f"thresholds relaxed: {', '.join(less)}"]


def describe_opinions(verdicts: Sequence[Verdict]) -> list[str]:
    """What the summary says of metrics that no record judged.

    Args:
        verdicts: Of the run.
    """
    opinions = [one.opinion for one in verdicts if one.reason is Reason.PLAUSIBLE and one.opinion is not None]
    by_references = sum(bool(opinion.source) for opinion in opinions)
    shown = sum(verdict.reason is Reason.NOT_JUDGED for verdict in verdicts)
    told = [
        f"{format_count(count, 'metric')} {what}"
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
