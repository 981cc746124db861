"""What the doctor prints."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from pytest_gpuperf.baselines.plain import make_plain
from pytest_gpuperf.features.doctor.facts import Facts
from pytest_gpuperf.features.doctor.finding import Finding, Severity
from pytest_gpuperf.features.doctor.suggest import Suggestion, explain_none
from pytest_gpuperf.features.doctor.topology_table import format_table

SCHEMA = 1
COMMAND = "python -m pytest_gpuperf doctor"


def report(facts: Facts, findings: Sequence[Finding]) -> list[str]:
    """The topology, then what was found, the worst first; what is well is counted and named in one line."""
    lines = format_table(facts.inspection, facts.system.nodes)
    if lines:
        lines.append("")
    for finding in findings:
        if finding.severity is Severity.PASS:
            continue
        lines.append(f"{finding.severity.value:8} {finding.check}: {finding.what}")
        if finding.why:
            lines.append(f"{'':8}   why: {finding.why}")
        if finding.action:
            lines.append(f"{'':8}   do:  {finding.action}")
    well = dict.fromkeys(finding.check for finding in findings if finding.severity is Severity.PASS)
    if well:
        lines.append(f"{'pass':8} {', '.join(well)}")
    return [*lines, "", format_summary(facts, findings)]


def format_summary(facts: Facts, findings: Sequence[Finding]) -> str:
    """How many GPUs and findings there are, in a line."""
    gpus = Counter(gpu.name or "unknown GPU" for gpu in facts.inspection.gpus)
    machine = ", ".join(f"{count} x {name}" for name, count in gpus.items()) or "no GPU"
    counts = Counter(finding.severity for finding in findings)
    words = ", ".join(f"{counts[severity]} {severity.value}" for severity in Severity if counts[severity])
    return f"{machine}: {words}"


def list_odd(findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings that a run should know of, the worst first."""
    return [finding for finding in findings if finding.severity in (Severity.CRITICAL, Severity.WARNING)]


def format_header(findings: Sequence[Finding]) -> str:
    """One line for the header of a run: the worst finding, and how many more there are."""
    bad = list_odd(findings)
    if not bad:
        return "doctor: nothing critical, no warnings"
    more = f"; {len(bad) - 1} more: {COMMAND}" if len(bad) > 1 else f"; see {COMMAND}"
    return f"doctor: {bad[0].severity.value}: {bad[0].what}{more}"


def format_suggestions(facts: Facts, found: Sequence[Suggestion]) -> list[str]:
    """One block for each variable; or that none is better than NCCL's own choice."""
    if not found:
        return [f"none: {explain_none(facts)}"]
    lines = []
    for one in found:
        lines += [one.command, f"    why:    {one.reason}", f"    source: {one.source}"]
        if one.measure:
            lines.append("    try it: it may also cost speed; measure with and without it")
    return lines


def make_document(facts: Facts, findings: Sequence[Finding], found: Sequence[Suggestion] | None) -> Mapping[str, Any]:
    """Return the report as plain JSON types; ``--facts`` reads ``facts`` back."""
    return {
        "doctor": SCHEMA,
        "facts": make_plain(facts),
        "findings": [make_plain(finding) for finding in findings],
        **({} if found is None else {"suggestions": [make_plain(one) for one in found]}),
    }
