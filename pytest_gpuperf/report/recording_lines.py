"""What is said of baselines when a run or a command ends: what was written, what was left and why, what is gone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from pytest_gpuperf.baselines.losses import Loss
from pytest_gpuperf.baselines.merge import MOVED, Merged
from pytest_gpuperf.baselines.plain import cut
from pytest_gpuperf.report.units import format_count, format_percent, format_value


def describe_gone(tests: Sequence[str], where: str) -> list[str]:
    """What the summary says of tests that are gone, and of which the baselines at this place have entries."""
    if not tests:
        return []
    one = len(tests) == 1
    what = "1 test that no longer exists" if one else f"{len(tests)} tests that no longer exist"
    cure = f'delete {"its entry" if one else "their entries"} under "tests" in {where}'
    cure += ", or, if a test was renamed, run: python -m pytest_gpuperf rename OLD NEW"
    return [f"the baselines contain {what}: {', '.join(tests)}: {cure}"]


def describe_renaming(places: Mapping[str, Mapping[str, str]]) -> list[str]:
    """What was renamed, and what it takes to be judged again.

    Args:
        places: By place of the baselines, the new node id of each old one.
    """
    lines = []
    for where, names in sorted(places.items()):
        lines += [f"{cut(old)} -> {cut(new)}" for old, new in sorted(names.items())]
        lines.append(f"{format_count(len(names), 'test')} renamed in {where}")
    functions = {
        (_extract_function(old), _extract_function(new)) for names in places.values() for old, new in names.items()
    }
    for old, new in sorted(functions):
        if old != new:
            lines.append(
                f"{cut(new)} was {cut(old)}, and a function's name is part of its body: the entries are stale until "
                "they are recorded again; losses are held against them all the same"
            )
    return lines


def update_lines(merged: Merged, accept_command: Callable[[str], str]) -> list[str]:
    """What was left and why, and which losses were accepted.

    Args:
        merged: What became of each test.
        accept_command: The command that accepts a test's loss.
    """
    lines = []
    if merged.unmoved:
        lines.append(f"{len(merged.unmoved)} tests left as they are: no centre moved by {format_percent(MOVED)}")
    if merged.present:
        lines.append(f"{len(merged.present)} tests left as they are: they have baselines, and only new ones are asked")
    lines += [
        f"gone with the metrics that were replaced: 'expected' of {test}: write it anew where it still holds"
        for test in merged.dropped
    ]
    lines += describe_unfit(merged.unfit or {})
    for loss in merged.accepted:
        lines.append(f"accepted: {_describe_loss(loss)}")
    for loss in merged.refused:
        lines.append(f"not written: {_describe_loss(loss)}; accept it with: {accept_command(loss.test)}")
    return lines


def describe_unfit(unfit: Mapping[str, str]) -> list[str]:
    """Tests of which nothing could be written, and why."""
    return [f"not written: {test}: {why}" for test, why in sorted(unfit.items())]


def _extract_function(test: str) -> str:
    return test.partition("[")[0].rpartition("::")[2]


def _describe_loss(loss: Loss) -> str:
    old, new = format_value(loss.old, loss.unit), format_value(loss.new, loss.unit)
    change = f"{old} -> {new}, {format_percent(abs(loss.change))} worse, bound {format_percent(loss.bound)}"
    if loss.anchor is None:
        return f"{loss.test} {loss.name} regressed: {change}"
    return f"{loss.test} {loss.name} drifted from its anchor of {loss.anchor.at}, commit {loss.anchor.commit}: {change}"
