"""Faults of the subject megatron."""

from __future__ import annotations

from benchmarks.mutants.fault import Fault

FAULTS: tuple[Fault, ...] = ()
