"""Compares traces of ranks with runs of a reference, and reports what is wrong."""

from __future__ import annotations

import functools
import operator
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch

from pytest_gpuperf.features.parity.evidence import Question
from pytest_gpuperf.features.parity.judging import judge
from pytest_gpuperf.features.parity.products import EXACT, Products
from pytest_gpuperf.features.parity.records import Kind, Trace
from pytest_gpuperf.features.parity.reference import SAMPLES, References
from pytest_gpuperf.features.parity.report import Report
from pytest_gpuperf.features.parity.tolerance import Tolerances, compute_unit, find_coarser_unit

_NEAR, _MORE = 2.0, 4
"""Nothing wrong beyond so many times its limit is judged again by so many times as many runs with random rounding."""
_ACTIVATIONS = (Kind.INPUT, Kind.OUTPUT, Kind.OUTPUT_GRADIENT, Kind.START)


@dataclass(frozen=True)
class Options:
    """What the user said about a comparison; see ``Parity.report``."""

    mesh: Mapping[str, int] = field(default_factory=dict)
    layouts: Mapping[str, str] = field(default_factory=dict)
    microbatches: int = 1
    precision: torch.dtype | None = None
    samples: int = SAMPLES
    share: Callable[[int], Any] | None = None


def find_units(
    reference: Trace, traces: Sequence[Trace], precision: torch.dtype | None = None
) -> tuple[float | None, float | None, Products]:
    """Returns the program's unit roundoffs, of what it computes with, of what it stores, and of its products.

    The first two are None if they are no coarser than the reference's. A precision that the user names counts alone.
    """
    stored = find_coarser_unit(reference, traces, (Kind.START,))
    if precision is not None:
        return compute_unit(precision), stored, EXACT
    products = functools.reduce(operator.or_, (trace.products for trace in traces), EXACT)
    return find_coarser_unit(reference, traces, _ACTIVATIONS), stored, products


def compare_held(
    references: References, traces: Sequence[Trace], options: Options, *, after: int = 0, each_step: bool = False
) -> Report:
    """Judges what ranks hold.

    Args:
        references: runs of the reference.
        traces: of the ranks, in their order.
        options: what the user said.
        after: the step whose end is the program's start, as in a resumed run; 0 for a run from the beginning.
        each_step: whether each step of the ranks began from the reference's state.
    """
    clock = time.perf_counter
    whole = references.whole
    reference = whole.trace.after(after)
    require_names(reference, traces)
    unit, stored, products = find_units(reference, traces, options.precision)
    begin = clock()
    runs = [run.after(after) for run in references.run_rounded(unit, products, options.samples, each_step=each_step)]
    shares = []
    if options.share is not None:
        shares = [references.plain(partial(options.share, rank), "share()") for rank in range(len(traces))]
    question = Question(
        reference=reference,
        traces=traces,
        tolerances=Tolerances(reference, runs, unit, stored, carried=not each_step),
        mesh=options.mesh,
        layouts=options.layouts,
        microbatches=options.microbatches,
        values=whole.values,
        vectors=whole.vectors,
        drawn=whole.drawn,
        shares=shares,
    )
    shaking = clock() - begin
    with references.alike():
        verdict = judge(question)
    if not verdict.ok and max(one.strain for one in verdict.wrong) < _NEAR:
        again = clock()
        more = _MORE * options.samples
        runs = [run.after(after) for run in references.run_rounded(unit, products, more, each_step=each_step)]
        shaking += clock() - again
        question = replace(question, tolerances=Tolerances(reference, runs, unit, stored, carried=not each_step))
        with references.alike():
            verdict = judge(question)
    seconds = {
        "reference": references.seconds,
        "random rounding": shaking,
        "judgement": clock() - begin - shaking,
    }
    return Report(verdict, len(traces), len(runs), seconds)


def require_names(reference: Trace, traces: Sequence[Trace]) -> None:
    """Refuses names that only one side has.

    Raises:
        ValueError: names differ, or nothing was returned.
    """
    mine = {record.key.name for record in reference if record.key.kind is Kind.VALUE}
    theirs = {record.key.name for trace in traces for record in trace if record.key.kind is Kind.VALUE}
    if not any(len(trace) for trace in traces) or not len(reference):
        who = "reference()" if not len(reference) else "no rank"
        raise ValueError(f"{who} returned {'no' if not len(reference) else 'any'} tensors: there is nothing to compare")
    if all(record.key.kind is Kind.START for record in reference):
        raise ValueError(
            "watch() of reference() saw no gradient and no output: call the model within it, and leave "
            "activations=True if nothing is differentiated"
        )
    if bool(mine) != bool(theirs):
        raise ValueError(
            f"{'reference()' if mine else 'the program'} returned tensors by name, and the other a trace of watch(): "
            "return the same from both"
        )
    lacking = [f"only reference() returns {name!r}" for name in sorted(mine - theirs)]
    lacking += [f"only ranks return {name!r}" for name in sorted(theirs - mine)]
    if lacking:
        raise ValueError(
            "names differ: " + "; ".join(lacking[:8]) + ": return each tensor by the same name on both sides"
        )
