"""The command ``parity-compare``: judges a recorded run of ranks by a recorded run on one device."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from pytest_gpuperf.features.parity.comparing import find_units, require_names
from pytest_gpuperf.features.parity.evidence import Question, list_vectors
from pytest_gpuperf.features.parity.judging import judge
from pytest_gpuperf.features.parity.layout import LayoutError
from pytest_gpuperf.features.parity.recorded_files import read_ranks, read_samples
from pytest_gpuperf.features.parity.records import Trace
from pytest_gpuperf.features.parity.report import Report
from pytest_gpuperf.features.parity.tolerance import Fixed, Tolerances
from pytest_gpuperf.report.command_error import CommandError


def judge_files(
    reference: Path,
    file: Path,
    *,
    mesh: Mapping[str, int],
    layouts: Mapping[str, str],
    microbatches: int = 1,
    precision: torch.dtype | None = None,
) -> tuple[Report, str]:
    """Judges a recorded run, and says which tolerance was used.

    Args:
        reference: the file of the run on one device.
        file: the file of the run on ranks.
        mesh: names and sizes of the mesh's axes.
        layouts: how ranks hold a tensor, by name.
        microbatches: into how many a rank cuts its batch.
        precision: what the program computes in, if no output shows it.

    Raises:
        CommandError: the files cannot be read or compared.
    """
    ones = read_ranks(reference)
    if len(ones) > 1:
        raise CommandError(f"{reference} is a recording of {len(ones)} ranks, expected one device: record a run on one")
    whole, traces, samples = ones[0], read_ranks(file), read_samples(reference)
    begin = time.perf_counter()
    try:
        require_names(whole, traces)
        unit, stored, products = find_units(whole, traces, precision)
        if products.coarsest > whole.products.coarsest:  # the samples' random rounding knew nothing of it
            unit = max(unit or 0.0, products.coarsest)
        if samples:
            tolerances: Tolerances = Tolerances(whole, samples, unit, stored)
            said = f"tolerance: from {len(samples)} runs of {reference} with random rounding"
        else:
            tolerances = Fixed(whole, unit, stored)
            said = (
                f"tolerance: {tolerances.share:.1g} of each tensor's largest element, a rule of thumb, since "
                f"{reference} has no runs with random rounding: run it with PARITY_ROUNDING=1, 2, ... 6 too"
            )
        axes = mesh or _find_mesh(traces)
        vectors = list_vectors(whole, [])
        verdict = judge(Question(whole, traces, tolerances, axes, layouts, microbatches, vectors=vectors))
    except (ValueError, LayoutError) as error:
        raise CommandError(str(error)) from None
    report = Report(verdict, len(traces), len(samples), {"judgement": time.perf_counter() - begin})
    return report, said


def _find_mesh(traces: Sequence[Trace]) -> Mapping[str, int]:
    """The mesh of the first DTensor that lies on all ranks; empty if there is none."""
    for record in traces[0]:
        place = record.placement
        if place is not None and math.prod(place.sizes) == len(traces):
            return dict(zip(place.axes, place.sizes, strict=True))
    return {}
