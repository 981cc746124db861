"""Faults of the subject deepspeed."""

from __future__ import annotations

from benchmarks.mutants.fault import Fault

FAULTS: tuple[Fault, ...] = (
    Fault(
        name="gradients divided by the steps, not by the microbatches",
        module="suites.deepspeed.programs",
        old="(loss / len(batch)).backward()",
        new="(loss / len(batches)).backward()",
    ),
)
