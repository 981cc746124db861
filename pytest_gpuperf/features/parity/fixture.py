"""The ``parity`` fixture: compares a program on ranks with a reference on one device."""

from __future__ import annotations

import contextlib
import inspect
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, final

import torch

from pytest_gpuperf.features.parity.census import Agreement, agreement
from pytest_gpuperf.features.parity.judging import Question, groups_of, judge, vectors_of
from pytest_gpuperf.features.parity.on_rank import Counted, Traced
from pytest_gpuperf.features.parity.operations import Operations, Value
from pytest_gpuperf.features.parity.optimizer_steps import OptimizerSteps
from pytest_gpuperf.features.parity.records import Key, Kind, Record, Trace, as_trace
from pytest_gpuperf.features.parity.report import Report
from pytest_gpuperf.features.parity.rounding import RandomRounding
from pytest_gpuperf.features.parity.tolerance import Tolerances, coarser_unit, unit_of
from pytest_gpuperf.fixtures.ranks import Ranks, require_callable

SAMPLES = 6
"""Runs of the reference with random rounding; half as many if a run takes longer than ``_LONG``."""
_LONG = 1.0
_ACTIVATIONS = (Kind.INPUT, Kind.OUTPUT, Kind.OUTPUT_GRADIENT, Kind.START)


class ParityError(AssertionError):
    """Ranks do not compute what one device computes; ``report`` has all that was found."""

    def __init__(self, report: Report) -> None:
        super().__init__(str(report))
        self.report = report


@dataclass(frozen=True)
class _Reference:
    trace: Trace
    values: dict[Key, Value]
    vectors: list[tuple[str, torch.Tensor]]
    drawn: tuple[str, ...]


@final
class Parity:
    """Compares programs on the test's ranks with references on one device."""

    def __init__(self, ranks: Ranks, seed: int = 0) -> None:
        self._ranks = ranks
        self._seed = seed
        self._is_small = True

    def check(self, reference: Callable[[], Any], program: Callable[..., Any], *args: Any, **options: Any) -> Report:
        """Fails unless ranks hold what the reference computes, up to rounding.

        Args:
            reference: runs on one device, in the pytest process; called about 8 times. Returns tensors by name, or the
                trace of ``watch``.
            program: runs on every rank as ``program(ctx, *args)``. Returns what the rank holds, by the same names.
            *args: for the program.
            **options: see ``report``.

        Returns:
            The report; ``report.slack`` is the smallest relative fault that would be seen.

        Raises:
            ParityError: a tensor is wrong. The message names the first one, and the cause if it is known.
            TypeError: the reference or the program returns no tensors by name.
            ValueError: the reference is not finite, or is another one each time; names or layouts do not fit.
        """
        __tracebackhide__ = True
        report = self.report(reference, program, *args, **options)
        if not report.ok:
            raise ParityError(report)
        return report

    def census(self, program: Callable[..., Any], *args: Any) -> Agreement:
        """Fails if copies that agreed drift apart; needs no reference.

        Args:
            program: runs on every rank as ``program(ctx, *args)``, and returns what ``with census(model, optimizer) as
                seen`` saw.
            *args: for the program.

        Returns:
            What is equal on which ranks.

        Raises:
            AssertionError: something drifted. The message names it, the step, and the ranks.
            TypeError: the program returns no census.
            ValueError: ranks took their censuses at different points.
        """
        __tracebackhide__ = True
        require_callable(program)
        taken = self._ranks.run(Counted(program), *args)
        meshes = [dict(mesh) for mesh in taken[0].meshes]
        found = agreement(taken, groups_of({}, meshes, self._ranks.world_size))
        if found.drifts:
            raise AssertionError(str(found))
        return found

    def report(
        self,
        reference: Callable[[], Any],
        program: Callable[..., Any],
        *args: Any,
        share: Callable[[int], Any] | None = None,
        mesh: Mapping[str, int] | None = None,
        layouts: Mapping[str, str] | None = None,
        microbatches: int = 1,
        precision: torch.dtype | None = None,
        samples: int = SAMPLES,
    ) -> Report:
        """Compares as ``check`` does, and returns the report whatever it says.

        Args:
            reference: as in ``check``.
            program: as in ``check``.
            *args: for the program.
            share: ``share(rank)`` runs the reference on the rank's share of the batch. It helps to name causes.
            mesh: names and sizes of the mesh's axes, the last one counting fastest; by default that of ``ctx.mesh``.
            layouts: how ranks hold a tensor, by name (``*`` stands for any text), where shapes do not say it:
                ``replicated``, ``shard(0)``, ``zigzag(0)``, ``interleaved(0)``, ``rank-local``, ``partial(sum)``,
                ``partial(mean)``.
            microbatches: into how many a rank cuts its batch; it helps to name causes.
            precision: what the program computes in, if no output shows it, as with compressed gradients.
            samples: runs of the reference with random rounding.
        """
        __tracebackhide__ = True
        require_reference(reference)
        require_callable(program)
        clock = time.perf_counter
        begin = clock()
        self._is_small = True
        whole = self._recorded(reference)
        self._require_repeatable(reference, whole.trace)
        ran = clock()
        self._is_small = (ran - begin) / 2 < _LONG
        traces = self._on_ranks(program, args)
        _require_names(whole.trace, traces)
        held = clock()
        unit = unit_of(precision) if precision is not None else coarser_unit(whole.trace, traces, _ACTIVATIONS)
        stored = coarser_unit(whole.trace, traces, (Kind.START,))
        if not self._is_small:
            samples = max(2, samples // 2)
        runs = [self._rounded(reference, number, unit) for number in range(samples)]
        shares = []
        if share is not None:
            shares = [self._plain(partial(share, rank), "share()") for rank in range(self._ranks.world_size)]
        shaken = clock()
        question = Question(
            reference=whole.trace,
            traces=traces,
            tolerances=Tolerances(whole.trace, runs, unit, stored),
            mesh=dict(mesh or {}),
            layouts=dict(layouts or {}),
            microbatches=microbatches,
            values=whole.values,
            vectors=whole.vectors,
            drawn=whole.drawn,
            shares=shares,
        )
        with self._alike():
            verdict = judge(question)
        seconds = {
            "reference": (ran - begin) / 2,
            "program": held - ran,
            "random rounding": shaken - held,
            "judgement": clock() - shaken,
        }
        return Report(verdict, self._ranks.world_size, samples, seconds)

    def _on_ranks(self, program: Callable[..., Any], args: Sequence[Any]) -> list[Trace]:
        __tracebackhide__ = True
        return list(self._ranks.run(Traced(program), *args))

    @contextlib.contextmanager
    def _alike(self) -> Iterator[None]:
        """Seeds the process, runs compiled functions eagerly, and puts the generators back.

        Small references run on one thread. Ranks have the cores too, and threads that wait for each other after each
        operation made small references ten times slower.
        """
        state, numbers, threads = torch.random.get_rng_state(), random.getstate(), torch.get_num_threads()
        torch.manual_seed(self._seed)
        random.seed(self._seed)
        if self._is_small:
            torch.set_num_threads(1)
        try:
            with torch.compiler.set_stance("force_eager"):
                yield
        finally:
            torch.set_num_threads(threads)
            torch.random.set_rng_state(state)
            random.setstate(numbers)

    def _recorded(self, reference: Callable[[], Any]) -> _Reference:
        operations = Operations()
        steps = OptimizerSteps(lambda: operations.count)
        with self._alike(), steps, operations:
            returned = _called(reference)
        trace = as_trace(returned, "reference()")
        if not isinstance(returned, Trace):
            tensors = _tensors(returned)
            found = {Key(0, Kind.VALUE, name): operations.value(tensor) for name, tensor in tensors.items()}
            order = {name: operations.order(tensor) for name, tensor in tensors.items()}
            trace = _merged(steps.trace(returned), trace, order)
        else:  # watch has made its copies within the run
            found = {record.key: operations.value(record.tensor) for record in trace}
        values = {key: value for key, value in found.items() if value is not None}
        _require_finite(trace)
        return _Reference(trace, values, vectors_of(trace, list(values.values())), operations.drew)

    def _plain(self, call: Callable[[], Any], where: str) -> Trace:
        steps = OptimizerSteps()
        with self._alike(), steps:
            returned = call()
        trace = as_trace(returned, where)
        return trace if isinstance(returned, Trace) else _merged(steps.trace(returned), trace, {})

    def _require_repeatable(self, reference: Callable[[], Any], first: Trace) -> None:
        again = self._plain(lambda: _called(reference), "reference()")
        for key, record in first.records.items():
            other = again.records.get(key)
            if other is None or not _equal(record.tensor, other.tensor):
                raise ValueError(
                    f"reference() is not repeatable: {first.title(key)} differs between two runs of the same seed. It "
                    "must not change what it closes over (build the model and copy the inputs inside), nor draw from a "
                    "generator that goes on between runs"
                )

    def _rounded(self, reference: Callable[[], Any], number: int, unit: float | None) -> Trace:
        steps = OptimizerSteps()
        with self._alike(), steps, RandomRounding(1000 * self._seed + number, unit):
            returned = _called(reference)
        trace = as_trace(returned, "reference()")
        return trace if isinstance(returned, Trace) else _merged(steps.trace(returned), trace, {})


def require_reference(reference: object) -> None:
    """Refuses what cannot be called without arguments.

    Raises:
        TypeError: it is no function, or it takes arguments.
    """
    if not callable(reference):
        raise TypeError(f"reference must be a function without arguments, got a {type(reference).__name__}")
    try:
        inspect.signature(reference).bind()
    except TypeError as error:
        raise TypeError(
            f"reference must take no arguments, since it runs on one device and is called again ({error}): write "
            "lambda: reference(...)"
        ) from None
    except ValueError:
        pass  # code that is not Python's has no signature


def _called(reference: Callable[[], Any]) -> Any:
    try:
        return reference()
    except (ValueError, RuntimeError) as error:
        if "process group" in str(error):
            error.add_note(
                "reference() runs in the pytest process, which has no ranks: leave collectives to the program, or pass "
                "them to the function that both call"
            )
        raise


def _tensors(returned: Any) -> dict[str, torch.Tensor]:
    if isinstance(returned, torch.Tensor):
        return {"result": returned}
    pairs = returned.items() if isinstance(returned, Mapping) else ((f"result[{i}]", v) for i, v in enumerate(returned))
    return {str(name): value for name, value in pairs if isinstance(value, torch.Tensor)}


def _merged(steps: Trace, values: Trace, order: Mapping[str, int]) -> Trace:
    """One trace of the optimizers' steps and the returned values, in order of computation."""
    records: list[Record] = [*steps]
    for record in values:
        at = order.get(record.key.name, 0)
        records.append(Record(record.key, record.tensor, record.placement, record.calls, at))
    if order:
        records.sort(key=lambda record: record.at)
    return Trace({record.key: record for record in records}, steps.titles)


def _equal(first: torch.Tensor, second: torch.Tensor) -> bool:
    if first.shape != second.shape or first.dtype != second.dtype:
        return False
    if first.element_size() == 1 and first.is_floating_point():
        return torch.equal(first.view(torch.uint8), second.view(torch.uint8))
    return torch.equal(first, second) or bool(torch.allclose(first, second, rtol=0, atol=0, equal_nan=True))


def _require_finite(trace: Trace) -> None:
    for record in trace:
        tensor = record.tensor
        if record.key.kind.is_activation or not (tensor.is_floating_point() or tensor.is_complex()):
            continue
        # Infinities may be a mask; what is not a number is nobody's intent.
        wide = tensor.float() if tensor.element_size() == 1 else tensor
        if bool(wide.isnan().any()):
            raise ValueError(
                f"reference() is not finite: {trace.title(record.key)} holds {int(wide.isnan().sum())} NaN of "
                f"{wide.numel()} elements; nothing can be compared with it"
            )


def _require_names(reference: Trace, traces: Sequence[Trace]) -> None:
    mine = {record.key.name for record in reference if record.key.kind is Kind.VALUE}
    theirs = {record.key.name for trace in traces for record in trace if record.key.kind is Kind.VALUE}
    if not any(len(trace) for trace in traces) or not len(reference):
        who = "reference()" if not len(reference) else "no rank"
        raise ValueError(f"{who} returned {'no' if not len(reference) else 'any'} tensors: there is nothing to compare")
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
