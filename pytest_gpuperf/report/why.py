"""Why a metric may have moved, in words: what differs from its record, and what was proved."""

import statistics
from collections.abc import Mapping, Sequence

from pytest_gpuperf.baselines.differences import sort_by_likelihood
from pytest_gpuperf.report.explain_lines import describe_explanation
from pytest_gpuperf.report.units import format_bytes, format_value
from pytest_gpuperf.verdicts.outcome import Outcome
from pytest_gpuperf.verdicts.verdict import Verdict

_FEW = 5  # files that a line names

# What GPUs do differs from launch to launch by less than this; beyond it a metric may follow.
_CLOCK = 0.02  # relative
_POWER = 0.1  # relative
_TEMPERATURE = 8.0  # K
_KELVIN = 273.15


def explain_change(verdict: Verdict) -> list[str]:
    """Return what differs from the record of a metric that is not the same, and what explains it, a phrase each."""
    # A loss of the environment has its variables and versions in the summary, once for all metrics.
    named = verdict.differs and verdict.outcome is not Outcome.ENVIRONMENT
    phrases = (
        describe_differing(verdict.differs) if named else "",
        say_measured(verdict),
        say_changed(verdict.changed),
        say_chosen(verdict.chosen),
        describe_explanation(verdict),
    )
    return [phrase for phrase in phrases if phrase]


def say_measured(verdict: Verdict) -> str:
    """Return how the GPUs' clock differed while the metric was measured, and what goes with that; empty if it did not.

    Only of a metric that is worse or better than its record. Power and temperature alone slow nothing: they follow what
    ran before. NVML's power is the mean of a second (``nvmlDeviceGetPowerUsage``), and most steps are timed for less.
    """
    alike = (Outcome.SAME, Outcome.MISSING, Outcome.INVALID, Outcome.RECORDED, Outcome.UNJUDGED)
    if verdict.baseline is None or verdict.outcome in alike:
        return ""
    now, launches = verdict.metric, verdict.baseline.launches
    clock, watts, kelvin = (
        statistics.median(known) if (known := [value for value in values if value is not None]) else None
        for values in (
            [one.sm_clock for one in launches],
            [one.watts for one in launches],
            [one.kelvin for one in launches],
        )
    )
    if not (clock and now.sm_clock and abs(now.sm_clock / clock - 1) > _CLOCK):
        return ""
    told = [f"SM clock {format_value(now.sm_clock, 'Hz')}, recorded {format_value(clock, 'Hz')}"]
    if watts and now.watts and abs(now.watts / watts - 1) > _POWER:
        told.append(f"power {format_value(now.watts, 'W')}, recorded {format_value(watts, 'W')}")
    if kelvin and now.kelvin and abs(now.kelvin - kelvin) > _TEMPERATURE:
        told.append(f"temperature {now.kelvin - _KELVIN:.0f} C, recorded {kelvin - _KELVIN:.0f} C")
    return f"while it was measured: {'; '.join(told)}"


def describe_differing(differs: Mapping[str, tuple[str, str]]) -> str:
    """Return the variables and versions that differ from the record, likeliest first."""
    if not differs:
        return "no version and no variable that is kept differs: look at the machine, its clocks and its neighbours"
    changes = (f"{name} {then or 'not set'} -> {now or 'not set'}" for name, (then, now) in sort_by_likelihood(differs))
    return f"what differs: {', '.join(changes)}"


def say_changed(files: Sequence[str]) -> str:
    """Return the changed files that the test imports; empty if there are none."""
    if not files:
        return ""
    more = f" and {len(files) - _FEW} more" if len(files) > _FEW else ""
    return f"changed since, and imported by the test: {', '.join(files[:_FEW])}{more}"


def say_chosen(chosen: Mapping[str, tuple[str, str]]) -> str:
    """Return what NCCL chooses otherwise than in the record; empty if it chooses the same, or nobody asked.

    Args:
        chosen: Names of ``hardware.nccl_choices`` with what it was in the record and what it is now.
    """
    told = "; ".join(f"{_format_choice(name)}: {_describe_choice(then, now)}" for name, (then, now) in chosen.items())
    return f"what NCCL chose: {told}" if told else ""


def _format_choice(name: str) -> str:
    operation, _, nbytes = name.rpartition(" ")
    return f"{operation} of {format_bytes(int(nbytes))}" if nbytes.isdecimal() else name


def _describe_choice(then: str, now: str) -> str:
    """What differs alone, if both have as many parts: ``12 channels, recorded 24``."""
    old, new = then.split(", "), now.split(", ")
    if len(old) != len(new):
        return f"{now}, recorded {then}"
    parts = [(before, after) for before, after in zip(old, new, strict=True) if before != after]
    return f"{', '.join(after for _, after in parts)}, recorded {', '.join(before for before, _ in parts)}"
