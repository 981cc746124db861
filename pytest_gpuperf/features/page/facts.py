"""What a page says of one figure: its facts, its launches, and why it was not judged."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from pytest_gpuperf.features.page.points import Points, make_points
from pytest_gpuperf.features.page.run import Run
from pytest_gpuperf.report.change import format_share
from pytest_gpuperf.report.units import format_count, format_percent, format_value
from pytest_gpuperf.verdicts.outcome import Outcome, Reason
from pytest_gpuperf.verdicts.verdict import Verdict

MOVED = (Outcome.REGRESSED, Outcome.MISSED, Outcome.ENVIRONMENT, Outcome.EXPECTED, Outcome.IMPROVED)
"""A figure that came to one of these differs from its baseline, from the old code, or from what its test requires."""


@dataclass(frozen=True, slots=True)
class Fact:
    """A name and a value."""

    name: str
    value: str


def list_facts(verdict: Verdict, run: Run) -> list[Fact]:
    """Return what a page says of a figure by name and value."""
    metric, baseline = verdict.metric, verdict.baseline
    share = partial(format_share, better=metric.better, unit=metric.unit, value=metric.value)
    value = format_value(metric.value, metric.unit)
    found = [Fact("value", value)]
    if verdict.old is not None:
        old = format_value(verdict.old, metric.unit)
        found = [Fact(f"old code, {run.old_code}", old), Fact(f"this code, {run.code}", value)]
    if metric.q1 is not None and metric.q3 is not None:
        between = " to ".join(format_value(end, metric.unit) for end in (metric.q1, metric.q3))
        found.append(Fact("middle half of the samples", f"{between}, {format_count(metric.samples, 'sample')}"))
    if metric.interval is not None:
        between = " to ".join(format_value(end, metric.unit) for end in metric.interval)
        found.append(Fact("bounds, each with 95 %", between))
    if baseline is not None:
        spread = (
            f"spread {format_percent(baseline.sigma_b)}, {format_count(len(baseline.launches), 'launch', 'launches')}"
        )
        found.append(Fact("baseline", f"{format_value(baseline.center, baseline.unit)} ({spread})"))
    if verdict.bound is not None:
        found.append(Fact("smallest loss that is found", format_percent(verdict.bound)))
    if verdict.code is not None:
        what = f"share of the code, against {verdict.against}"
        found.append(Fact("change between the two codes" if verdict.old is not None else what, share(verdict.code)))
    if verdict.environment is not None:
        found.append(Fact("share of the environment", share(verdict.environment)))
    found += [
        Fact(f"{name} differs", f"{then or 'not set'} → {now or 'not set'}")
        for name, (then, now) in verdict.differs.items()
    ]
    if metric.limit is not None:
        found.append(Fact("physical limit", f"{format_value(metric.limit, metric.unit)} {metric.limit_name}".strip()))
    if metric.at_least is not None:
        found.append(Fact("required at least", format_value(metric.at_least, metric.unit)))
    if metric.clock:
        bound = ", bound by the host" + ", which waits for the device" * metric.waits
        found.append(Fact("clock", metric.clock + bound * metric.host_bound))
    if metric.sm_clock is not None:
        capped = ", at the power limit" if metric.power_capped else ""
        found.append(Fact("SM clock", format_value(metric.sm_clock, "Hz") + capped))
    return found


def find_points(run: Run, verdict: Verdict) -> Points | None:
    """Return the old and new launches of a figure that moved; of a race without a record, each side's median."""
    if verdict.outcome not in MOVED:
        return None
    metric, baseline = verdict.metric, verdict.baseline
    if baseline is None:
        return make_points([] if verdict.old is None else [verdict.old], [metric.value], metric.unit, metric.better)
    tests = run.results.candidate.tests
    measured = tests[verdict.test].metrics.get(verdict.metric_name) if verdict.test in tests else None
    new = [metric.value] if measured is None else [one.median for one in measured.launches]
    return make_points([one.median for one in baseline.launches], new, metric.unit, metric.better)


def explain_not_judged(verdict: Verdict) -> str:
    """Return why a figure could not be judged; empty if it was, or if nothing was to be judged."""
    match verdict.outcome, verdict.reason:
        case _, Reason.OWN_WORDS:
            return ""
        case Outcome.INVALID, Reason.ABOVE_LIMIT:
            return "better than the hardware allows: the measurement is broken"
        case Outcome.INVALID, _:
            return "the machine was not fit for the measurement"
        case Outcome.MISSING, Reason.STALE:
            return "the test has changed since its baseline was recorded"
        case Outcome.MISSING, Reason.PLAUSIBLE:
            return "no baseline; plausible for this hardware"
        case Outcome.MISSING, Reason.BELOW:
            return "no baseline; worse than expected of this hardware"
        case Outcome.MISSING, Reason.ABOVE_MODEL:
            return "no baseline; better than expected of this hardware"
        case Outcome.MISSING, _:
            return "no baseline"
        case Outcome.UNDECIDED, Reason.OPEN:
            return "slower, but the launches differ too much to decide"
        case Outcome.UNDECIDED, Reason.BUDGET:
            return "slower, but time ran out before it was decided"
        case Outcome.UNDECIDED, Reason.CANNOT_RACE:
            return "slower, but it could not race the old code"
        case Outcome.UNDECIDED, Reason.ASKED:
            return "maybe below what the test requires"
        case Outcome.UNDECIDED, _:
            return "slower, but the run ended before other launches decided"
        case Outcome.UNJUDGED, Reason.NOISY:
            return "the baseline is too noisy"
        case _:
            return ""
