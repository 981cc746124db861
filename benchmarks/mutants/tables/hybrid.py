"""Faults of the subject hybrid."""

from __future__ import annotations

from benchmarks.mutants.fault import Fault

FAULTS: tuple[Fault, ...] = ()
