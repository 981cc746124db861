"""What speaks for a machine of two GPUs, as the verdict meets it."""

from __future__ import annotations

from typing import Any

from pytest_gpuperf.baselines.schema import LaunchFigure, MetricBaseline
from pytest_gpuperf.features.acceptance.verdict import Acceptance, Row, Seen, judge_acceptance
from pytest_gpuperf.features.doctor.finding import Finding, make_critical, make_warning
from pytest_gpuperf.figures.conditions import Gate, Tripped
from pytest_gpuperf.figures.metric import Metric
from pytest_gpuperf.report.ran import Ran
from pytest_gpuperf.verdicts.opinion import Opinion, Saying
from pytest_gpuperf.verdicts.outcome import Outcome, Reason
from pytest_gpuperf.verdicts.verdict import Verdict

KEY = "2x-nvidia-h200-nv18"
SOURCE = "9 launches on 4 machines of this kind"
USUAL, LOW = 360e9, 342e9  # B/s; 5 % less is plausible
BUSY = (Tripped("GPU-1", Gate.OTHER_PROCESSES, 1.0),)
LAUNCHES = ("2026-05-12T10:00:00Z-1-a0ee1c", "2026-05-11T10:00:00Z-5-a0ee1c")
RECORD = MetricBaseline("B/s", "higher", "cuda_event", tuple(LaunchFigure(one, 9, USUAL) for one in LAUNCHES))
P2P = make_critical("variables", "NCCL_P2P_DISABLE=1: all traffic goes through the host's memory", "slow", "unset it")
FEW_CORES = make_warning("cores", "this process may use 2 cores for 2 GPUs", "ranks share cores", "give it more cores")


def node_id(subject: str, function: str, file: str = "test_performance.py") -> str:
    """The node id of a suite's test."""
    return f"suites/{subject}/{file}::test_{function}"


def figure(
    test: str = "all_reduce[2ranks]",
    *,
    subject: str = "collectives",
    name: str = "busbw",
    value: float = USUAL,
    saying: Saying | None = None,
    usual: float | None = USUAL,
    source: str = SOURCE,
    **metric: Any,
) -> Verdict:
    """A figure without a record, held against references; below if its value is."""
    said = saying or (Saying.PLAUSIBLE if value >= LOW else Saying.BELOW)
    reason = {Saying.PLAUSIBLE: Reason.PLAUSIBLE, Saying.BELOW: Reason.BELOW}.get(said, Reason.NOT_JUDGED)
    opinion = Opinion(said, low=LOW, source=source, usual=usual, seen=None if usual is None else 0.064)
    shown = Metric(value, "B/s", "higher", clock="cuda_event", **metric)
    return Verdict(node_id(subject, test), name, shown, Outcome.MISSING, KEY, reason=reason, opinion=opinion)


def recorded(outcome: Outcome, value: float, **more: Any) -> Verdict:
    """A figure with a record."""
    metric = Metric(value, "B/s", "higher", clock="cuda_event")
    return Verdict(node_id("collectives", "all_reduce[2ranks]"), "busbw", metric, outcome, KEY, RECORD, **more)


def unfit(saying: Saying, value: float) -> Verdict:
    """A figure of a GPU that somebody else's process used meanwhile."""
    metric = Metric(value, "B/s", "higher", invalid=BUSY)
    opinion = Opinion(saying, low=LOW, source=SOURCE, usual=USUAL, seen=0.064)
    test = node_id("collectives", "all_reduce[2ranks]")
    return Verdict(test, "busbw", metric, Outcome.INVALID, KEY, reason=Reason.UNFIT, opinion=opinion)


def ran(test: str, outcome: Any = "passed", reason: str = "", **properties: int) -> Ran:
    """What became of a test."""
    return Ran(test, outcome, 1.0, test.partition("::")[0], 10, reason, properties=properties)


NUMBERS = ran(node_id("collectives", "sums[2ranks]", "test_correctness.py"))
SOAK = node_id("health", "nothing_is_corrupted[2ranks]", "test_soak.py")
WELL = (
    figure("under_load[2ranks]", subject="health", name="slowest_gpu"),
    figure("cache_and_memory[2ranks-read]", subject="memory_hierarchy", name="peak"),
    figure("cores[2ranks]", subject="host", name="share"),
    figure("pcie_of_each_gpu[2ranks-to_gpu]", subject="memory_hierarchy", name="slowest_gpu"),
    figure("ring_copy[2ranks]", subject="nvlink", name="peer"),
    figure("broadcast[2ranks]"),
)
"""A plausible figure for each component but the network."""


def judged(
    *verdicts: Verdict,
    tests: tuple[Ran, ...] = (),
    findings: tuple[Finding, ...] = (),
    gpus: int = 2,
    partial: str = "",
    **more: Any,
) -> Acceptance:
    """The verdict on a machine that is well but for what is given."""
    every = (*WELL, *verdicts)
    passed = {one.test: ran(one.test) for one in every}
    seen = Seen(every, (*passed.values(), NUMBERS, *tests), findings, gpus=gpus, **more)
    return judge_acceptance(seen, partial)


def row_of(acceptance: Acceptance, component: str) -> Row:
    """The row of a component."""
    (row,) = (row for row in acceptance.rows if row.component == component)
    return row
