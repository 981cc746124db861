"""Faults of the subject symmetric_memory."""

from __future__ import annotations

from benchmarks.mutants.fault import Fault

FAULTS: tuple[Fault, ...] = ()
