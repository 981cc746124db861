"""What an update of baselines says of itself."""

from collections.abc import Callable, Mapping

from pytest_gpuperf.baselines.losses import Loss
from pytest_gpuperf.baselines.merge import MOVED, Merged
from pytest_gpuperf.report.units import format_percent, format_value


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
        f"gone with the figures that were replaced: {' and '.join(map(repr, by_hand))} of {test}: "
        "write it anew where it still holds"
        for test, by_hand in sorted((merged.dropped or {}).items())
    ]
    lines += unfit_lines(merged.unfit or {})
    for loss in merged.accepted:
        lines.append(f"accepted: {_loss(loss)}")
    for loss in merged.refused:
        lines.append(f"not written: {_loss(loss)}; accept it with: {accept_command(loss.test)}")
    return lines


def unfit_lines(unfit: Mapping[str, str]) -> list[str]:
    """Tests of which nothing could be written, and why."""
    return [f"not written: {test}: {why}" for test, why in sorted(unfit.items())]


def _loss(loss: Loss) -> str:
    old, new = format_value(loss.old, loss.unit), format_value(loss.new, loss.unit)
    change = f"{old} -> {new}, {format_percent(abs(loss.change))} worse, bound {format_percent(loss.bound)}"
    if loss.anchor is None:
        return f"{loss.test} {loss.name} regressed: {change}"
    return f"{loss.test} {loss.name} drifted from its anchor of {loss.anchor.at}, commit {loss.anchor.commit}: {change}"
