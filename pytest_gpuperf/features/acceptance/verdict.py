"""The verdict on a machine: what metrics, tests and findings make of each component."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from pytest_gpuperf.features.acceptance.components import (
    MACHINE,
    NETWORK,
    NUMBERS,
    explain,
    find_component,
    find_subject,
    is_number,
    is_soak,
)
from pytest_gpuperf.features.acceptance.power import say_soaked
from pytest_gpuperf.features.doctor.finding import Finding, Severity
from pytest_gpuperf.report.ran import Ran
from pytest_gpuperf.report.tripped import say_tripped
from pytest_gpuperf.report.units import format_count, format_percent, format_value
from pytest_gpuperf.report.verdict_line import describe_outcome
from pytest_gpuperf.verdicts.opinion import Saying
from pytest_gpuperf.verdicts.outcome import Outcome, Reason
from pytest_gpuperf.verdicts.rule import Policy
from pytest_gpuperf.verdicts.verdict import Verdict

SURELY = 2.0
"""A component with one test below what is expected is slow if that lost so many times the loss that counts."""

_LOST = (Outcome.REGRESSED, Outcome.ENVIRONMENT, Outcome.MISSED)
_DATE = len("2026-11-28")  # which the id of a launch begins with
_APART = 0.03  # of ranks' own metrics: nearer ones name no GPU


class State(Enum):
    """What a component came to, the worst first."""

    BROKEN = "broken"
    SLOW = "slow"
    NOT_JUDGED = "not judged"
    OK = "ok"


class Fitness(Enum):
    """What the machine came to."""

    FIT = "fit"
    REMARKS = "fit, with remarks"
    NUMBERS = "fit, in its numbers: nothing else was judged"
    UNFIT = "unfit"


@dataclass(frozen=True, slots=True)
class Row:
    """One component."""

    component: str
    state: State
    what: str
    """What speaks for it, in words."""
    because: str = ""
    """A finding that explains why it is slow or broken; empty if there is none."""
    decided: bool = False
    """Whether a finding names it as the cause, so that it is named before those that rest on it."""


@dataclass(frozen=True, slots=True)
class Acceptance:
    """The verdict."""

    rows: Sequence[Row]
    remarks: Sequence[str] = ()
    partial: str = ""
    """Why not all was done; empty if it was."""

    corrupted: bool = False
    """Whether a soak found wrong results."""

    @property
    def bad(self) -> list[Row]:
        """Components that are slow or broken; the one that others rest on comes first.

        Wrong results of a soak come before all: what else is bad may be so by them. Then comes what a finding names.
        """
        bad = [row for row in self.rows if row.state in (State.BROKEN, State.SLOW)]
        return sorted(bad, key=lambda row: (self.corrupted and row.component != NUMBERS, not row.decided))

    @property
    def fitness(self) -> Fitness:
        """What the machine came to."""
        if self.bad:
            return Fitness.UNFIT
        judged = [row.component for row in self.rows if row.state is not State.NOT_JUDGED]
        if judged == [NUMBERS] and not self.partial:
            return Fitness.NUMBERS
        return Fitness.REMARKS if self.remarks or self.partial else Fitness.FIT


@dataclass(frozen=True, slots=True)
class Seen:
    """All that speaks for a machine."""

    verdicts: Sequence[Verdict] = ()
    ran: Sequence[Ran] = ()
    findings: Sequence[Finding] = ()
    matrices: Sequence[Mapping[str, object]] = ()
    gpus: int = 0
    """Number of GPUs of the run."""
    failed: str = ""
    """What else went wrong while the tests ran; empty if nothing did."""


def judge_acceptance(seen: Seen, partial: str = "") -> Acceptance:
    """Return the verdict.

    Args:
        seen: what speaks for the machine.
        partial: why not all was done.
    """
    machine = [_judge_component(component.name, seen) for component in MACHINE]
    steps = sorted(
        {find_component(one.test, "") for one in seen.ran if not is_number(one)}
        | {find_component(one.test, one.metric_name) for one in seen.verdicts}
    )
    names = [component.name for component in MACHINE]
    rows = [*machine, *(_judge_component(name, seen) for name in steps if name not in names), _judge_numbers(seen)]
    corrupted = any(is_soak(one) and one.outcome == "failed" for one in seen.ran)
    return Acceptance(rows, list(_iterate_remarks(seen, rows)), partial, corrupted)


def _judge_component(name: str, seen: Seen) -> Row:
    verdicts = [one for one in seen.verdicts if find_component(one.test, one.metric_name) == name]
    tests = {one.test for one in verdicts}
    ran = [one for one in seen.ran if not is_number(one) and (one.test in tests or find_component(one.test) == name)]
    told = [one for one in seen.findings if one.check in explain(name).checks]
    bad = sorted((one for one in told if one.severity in (Severity.CRITICAL, Severity.WARNING)), key=_rank_finding)
    because = _describe_cause(bad[0]) if bad else ""
    failing = {one.test for one in seen.verdicts if one.fails}
    broken = [
        one for one in ran if one.outcome == "failed" and one.test not in failing and find_component(one.test) == name
    ]
    below = sorted((one for one in verdicts if _is_below(one)), key=_compute_loss, reverse=True)
    slow = _describe_slow(below, verdicts, seen) if _is_slow(below) else ""
    decisive = [one for one in bad if one.check in explain(name).decisive]
    if decisive:
        because = _describe_cause(decisive[0])
    if broken:
        return Row(
            name, State.BROKEN, "; ".join(filter(None, (_say_what_broke(broken), slow))), because, bool(decisive)
        )
    if slow:
        return Row(name, State.SLOW, slow, because, bool(decisive))
    if critical := [one for one in bad if one.severity is Severity.CRITICAL]:
        return Row(name, State.BROKEN, critical[0].what, critical[0].action)
    if decisive:
        return Row(name, State.SLOW, decisive[0].what, decisive[0].action, decided=True)
    judged = [one for one in verdicts if _is_judged(one)]
    if not judged:
        return Row(name, State.NOT_JUDGED, _say_why_not(verdicts, ran, seen))
    return Row(name, State.OK, _describe_ok(judged, verdicts))


def _describe_cause(finding: Finding) -> str:
    """Return what a finding is, and what to do about it."""
    return f"{finding.what}; {finding.action}" if finding.action else finding.what


def _judge_numbers(seen: Seen) -> Row:
    tests = [one for one in seen.ran if is_number(one)]
    ends = Counter(one.outcome for one in tests)
    failed = sorted((one for one in tests if one.outcome == "failed"), key=lambda one: not is_soak(one))
    checked = sum(one.outcome == "passed" for one in seen.ran if not is_number(one))
    soak = say_soaked([one.properties for one in tests])
    passed = f"{format_count(ends['passed'], 'test')} passed"
    full = f"; values right at full size in {format_count(checked, 'perf test')}" if checked else ""
    if failed:
        return Row(NUMBERS, State.BROKEN, f"{_say_what_broke(failed)}; {passed}")
    if seen.failed:
        return Row(NUMBERS, State.BROKEN, seen.failed)
    if not ends["passed"]:
        return Row(NUMBERS, State.NOT_JUDGED, "no test of correctness ran")
    return Row(NUMBERS, State.OK, f"{passed}{full}{f'; {soak}' if soak else ''}")


def _iterate_remarks(seen: Seen, rows: Iterable[Row]) -> Iterable[str]:
    """Yield what makes no component unfit and is worth a look."""
    if not seen.gpus:
        yield "no GPU is in use: only the numbers of some suites were checked, on CPUs"
    told = [row.because for row in rows] + [row.what for row in rows]
    for row in rows:
        if row.state is State.NOT_JUDGED and seen.gpus and row.component != NETWORK and row.component in _EVERY:
            yield f"{row.component}: not judged: {row.what}"
    bad = {row.component for row in rows if row.state in (State.BROKEN, State.SLOW)}
    for verdict in seen.verdicts:
        name = find_component(verdict.test, verdict.metric_name)
        if name not in bad and (_is_below(verdict) or verdict.outcome is Outcome.UNDECIDED):
            yield f"{name}: {_describe_verdict(verdict)}, alone among its metrics"
    for row in rows:
        if row.state is State.OK and (worthless := _list_worthless(row.component, seen)):
            more = f"; {len(worthless) - 1} more" if len(worthless) > 1 else ""
            why = describe_outcome(worthless[0])
            yield f"{row.component}: {_describe_verdict(worthless[0])}: {why}{more}"
    for finding in sorted(seen.findings, key=_rank_finding):
        if finding.severity in (Severity.CRITICAL, Severity.WARNING) and not any(finding.what in one for one in told):
            yield f"{finding.check}: {finding.what}"


def _list_worthless(name: str, seen: Seen) -> list[Verdict]:
    """Return a component's metrics that fail their tests and are not below: nothing else in the verdict names them."""
    return [
        one
        for one in seen.verdicts
        if one.fails and not _is_below(one) and find_component(one.test, one.metric_name) == name
    ]


_EVERY = [component.name for component in MACHINE]


def _rank_finding(finding: Finding) -> int:
    return finding.severity.rank


def _is_judged(verdict: Verdict) -> bool:
    held = verdict.baseline is not None and verdict.outcome is not Outcome.MISSING
    asked = verdict.metric.at_least is not None and verdict.metric.interval is not None
    expected = verdict.reason in (Reason.PLAUSIBLE, Reason.BELOW)
    return (held or asked or expected) and verdict.outcome is not Outcome.INVALID


def _is_below(verdict: Verdict) -> bool:
    """Whether a metric is worse than its record, or than machines of this kind or the model allow."""
    unfit = verdict.reason is Reason.UNFIT and verdict.opinion is not None and verdict.opinion.saying is Saying.BELOW
    return verdict.outcome in _LOST or verdict.reason is Reason.BELOW or unfit


def _is_slow(below: Sequence[Verdict]) -> bool:
    """Whether metrics that are below make their component slow: two tests do, and one by far."""
    if not below:
        return False
    sure = any(one.outcome in _LOST or _compute_loss(one) > SURELY * _compute_least_loss(one) for one in below)
    return sure or len({one.test for one in below}) > 1


def _compute_loss(verdict: Verdict) -> float:
    """The logarithm of the slowdown against what is usual; against the plausible end if only the model tells."""
    usual, metric = _find_usual(verdict), verdict.metric
    if usual is None:
        return 0.0
    return math.log(metric.value / usual) * (1 if metric.better == "lower" else -1)


def _find_usual(verdict: Verdict) -> float | None:
    said = verdict.opinion
    if verdict.outcome is Outcome.MISSED:
        return verdict.metric.at_least
    if verdict.baseline is not None:
        return verdict.baseline.center
    if said is None:
        return None
    return said.usual or (said.low if verdict.metric.better == "higher" else said.high)


def _compute_least_loss(verdict: Verdict) -> float:
    """The loss that counts, as a logarithm: from what is usual to the plausible end."""
    said, slower = verdict.opinion, Policy().slower
    end = None if said is None else said.low if verdict.metric.better == "higher" else said.high
    if said is None or said.usual is None or end is None:
        return slower  # the model's end is far from what is usual already
    return max(slower, abs(math.log(end / said.usual)))


def _describe_verdict(verdict: Verdict) -> str:
    metric, usual = verdict.metric, _find_usual(verdict)
    value = format_value(metric.value, metric.unit)
    against = {Outcome.MISSED: "asked for at least"}.get(verdict.outcome, "usually")
    if verdict.opinion is not None and verdict.opinion.usual is None and verdict.baseline is None:
        against = "expected at least" if metric.better == "higher" else "expected at most"
    change = "" if usual is None else f", {against} {format_value(usual, metric.unit)}"
    return f"{_shorten_test(verdict.test)} {verdict.metric_name} {value}{change}{_name_gpu(verdict)}"


def _shorten_test(test: str) -> str:
    return test.rpartition("::")[2].removeprefix("test_")


def _name_gpu(verdict: Verdict) -> str:
    """Name the GPU whose own metric is far from the others'; empty if none is."""
    metric = verdict.metric
    if metric.scope not in ("gpu", "pair") or len(metric.by_rank) < 2:
        return ""
    worst = min(metric.by_rank) if metric.better == "higher" else max(metric.by_rank)
    rank = metric.by_rank.index(worst)
    others = statistics.median(value for number, value in enumerate(metric.by_rank) if number != rank)
    if abs(math.log(worst / others)) < _APART:
        return ""
    return f" (GPU {rank}; the others {format_value(others, metric.unit)})"


def _say_what_broke(failed: Sequence[Ran]) -> str:
    first = failed[0]
    more = f"; {len(failed) - 1} more" if len(failed) > 1 else ""
    return f"{find_subject(first.test)}::{first.test.rpartition('::')[2]}: {first.reason}{more}"


def _describe_slow(below: Sequence[Verdict], verdicts: Sequence[Verdict], seen: Seen) -> str:
    worst = below[0]
    more = f"; {len(below)} of {format_count(len(verdicts), 'metric')}" if len(below) > 1 else ""
    lost = format_percent(
        1 - math.exp(-_compute_loss(worst)) if worst.metric.better == "higher" else math.expm1(_compute_loss(worst))
    )
    unfit = sorted({say_tripped(one.metric.invalid) for one in below if one.metric.invalid})
    why = f"; {unfit[0]}" if unfit else ""
    return f"{_describe_verdict(worst)}: {lost} worse{_name_pair(worst, seen)}{more}{why}; {_describe_sources(below)}"


def _name_pair(verdict: Verdict, seen: Seen) -> str:
    """Name the slowest pair, if the component's test measured pairs and one is far from the others."""
    for matrix in seen.matrices if verdict.metric.scope == "pair" else ():
        rows = matrix.get("rows")
        if matrix.get("test") != verdict.test or not isinstance(rows, list):
            continue
        cells = {
            (one, other): value
            for one, row in enumerate(rows)
            for other, value in enumerate(row)
            if isinstance(value, float)
        }
        if not cells:
            continue
        (one, other), slowest = min(cells.items(), key=lambda cell: cell[1])
        if slowest < (1 - _APART) * statistics.median(cells.values()) or len(cells) <= 2:
            return f" (GPU {one} to GPU {other})"
    return ""


def _describe_ok(judged: Sequence[Verdict], verdicts: Sequence[Verdict]) -> str:
    first = max(judged, key=lambda one: one.metric.share_of_limit or 0.0)
    value = f"{_shorten_test(first.test)} {first.metric_name} {format_value(first.metric.value, first.metric.unit)}"
    seen = [one.opinion.seen for one in judged if one.opinion is not None and one.opinion.seen is not None]
    seen += [one.bound for one in judged if one.bound is not None]
    found = f"; a loss of {format_percent(statistics.median(seen))} is seen" if seen else ""
    shown = len(verdicts) - len(judged)
    more = f"; {shown} shown" if shown else ""
    return f"{value}; {format_count(len(judged), 'metric')}: {_describe_sources(judged)}{found}{more}"


def _describe_sources(verdicts: Sequence[Verdict]) -> str:
    """Say who the metrics were held against, most of them first."""
    counts = Counter(map(_name_source, verdicts))
    (most, _), *others = counts.most_common()
    return most if not others else f"{most}, and {len(others)} more source{'s' if len(others) > 1 else ''}"


def _name_source(verdict: Verdict) -> str:
    if verdict.baseline is not None:
        return f"your baseline of {max(one.launch for one in verdict.baseline.launches)[:_DATE]}"
    if verdict.outcome is Outcome.MISSED or verdict.opinion is None or verdict.opinion.saying is Saying.NONE:
        return "what the test asks for"
    return verdict.opinion.source or "model: data sheets"


def _say_why_not(verdicts: Sequence[Verdict], ran: Sequence[Ran], seen: Seen) -> str:
    if not seen.gpus:
        return "no GPU in use"
    unfit = [one for one in verdicts if one.metric.invalid]
    if unfit:
        return say_tripped(unfit[0].metric.invalid)
    if verdicts:
        first = verdicts[0]
        value = f"{_shorten_test(first.test)} {first.metric_name} {format_value(first.metric.value, first.metric.unit)}"
        what = "no baseline, reference or model" if first.metric.scope != "host" else "it depends on the host"
        return f"{what}: {format_count(len(verdicts), 'metric')} shown, {value}"
    own = [one for one in ran if find_component(one.test).startswith(find_subject(one.test))]
    skips = Counter(one.reason for one in own or ran if one.outcome == "skipped")
    return skips.most_common(1)[0][0] if skips else "no test of it ran"
