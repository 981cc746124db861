"""Runs of a reference on one device: one with its operations recorded, and more with random rounding."""

from __future__ import annotations

import contextlib
import inspect
import random
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from pytest_gpuperf.features.parity.evidence import list_vectors
from pytest_gpuperf.features.parity.operations import Operations, Value
from pytest_gpuperf.features.parity.optimizer_steps import OptimizerSteps
from pytest_gpuperf.features.parity.products import EXACT, Products
from pytest_gpuperf.features.parity.records import Key, Kind, Record, Trace, make_trace
from pytest_gpuperf.features.parity.rounding import RandomRounding
from pytest_gpuperf.features.parity.step_starts import StepStarts, beginning

SAMPLES = 6
"""Runs with random rounding; a third of that if a run takes longer than ``_LONG``."""
_LONG = 1.0


@dataclass(frozen=True)
class Recorded:
    """A reference's run, and where its tensors are among its operations."""

    trace: Trace
    values: Mapping[Key, Value]
    vectors: list[tuple[str, torch.Tensor]]
    drawn: tuple[str, ...]


class References:
    """Runs a reference, each kind of run only once.

    Args:
        reference: a function without arguments that returns tensors by name, or the trace of ``watch``.
        seed: of torch's and Python's generators before each run, and of the random rounding.
    """

    def __init__(self, reference: Callable[[], Any], seed: int = 0) -> None:
        require_reference(reference)
        self._reference = reference
        self._seed = seed
        self._is_small = True
        self._rounded: dict[tuple[float | None, Products, int, bool], list[Trace]] = {}

    @cached_property
    def whole(self) -> Recorded:
        """The run with its operations recorded; a second run shows that it is repeatable.

        Raises:
            ValueError: the reference is not finite, or not repeatable.
        """
        whole = self._record()
        begin = time.perf_counter()  # the first run also imports what torch loads late
        self._require_repeatable(whole.trace)
        self.seconds = time.perf_counter() - begin
        self._is_small = self.seconds < _LONG
        return whole

    @property
    def starts(self) -> StepStarts:
        """The whole parameters and optimizer states at the end of each step."""
        ends = (Kind.PARAMETER, Kind.STATE)
        return StepStarts({record.key: record.tensor for record in self.whole.trace if record.key.kind in ends})

    def run_rounded(
        self, unit: float | None, products: Products = EXACT, samples: int = SAMPLES, *, each_step: bool = False
    ) -> list[Trace]:
        """Runs with random rounding.

        Args:
            unit: the program's unit roundoff, if it is coarser than the reference's.
            products: its unit roundoffs of products.
            samples: how many; fewer are made if a run is long.
            each_step: whether each step begins from the state of the run without random rounding.
        """
        if not self._is_small:
            samples = max(2, samples // 3)
        known = self._rounded.get((unit, products, samples, each_step))
        if known is None:
            with beginning(self.starts if each_step else None):
                known = [self._run_shaken(number, unit, products) for number in range(samples)]
            self._rounded[unit, products, samples, each_step] = known
        return known

    @contextlib.contextmanager
    def alike(self) -> Iterator[None]:
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

    def _record(self) -> Recorded:
        operations = Operations()
        steps = OptimizerSteps(lambda: operations.count)
        with self.alike(), steps, operations:
            returned = _call(self._reference)
        trace = make_trace(returned, "reference()")
        if not isinstance(returned, Trace):
            tensors = _collect_tensors(returned)
            found = {Key(0, Kind.VALUE, name): operations.value(tensor) for name, tensor in tensors.items()}
            order = {name: operations.order(tensor) for name, tensor in tensors.items()}
            trace = _merge(steps.trace(returned), trace, order)
        else:  # watch has made its copies within the run
            found = {record.key: operations.value(record.tensor) for record in trace}
        values = {key: value for key, value in found.items() if value is not None}
        _require_finite(trace)
        return Recorded(trace, values, list_vectors(trace, list(values.values())), operations.drew)

    def plain(self, call: Callable[[], Any], where: str) -> Trace:
        """Runs a function as the reference is run, and returns its trace.

        Args:
            call: returns what a reference returns.
            where: names the function in messages.
        """
        steps = OptimizerSteps()
        with self.alike(), steps:
            returned = call()
        trace = make_trace(returned, where)
        return trace if isinstance(returned, Trace) else _merge(steps.trace(returned), trace, {})

    def _require_repeatable(self, first: Trace) -> None:
        again = self.plain(lambda: _call(self._reference), "reference()")
        for key, record in first.records.items():
            other = again.records.get(key)
            if other is None or not _is_equal(record.tensor, other.tensor):
                raise ValueError(
                    f"reference() is not repeatable: {first.title(key)} differs between two runs of the same seed. It "
                    "must not change what it closes over (build the model and copy the inputs inside), nor draw from a "
                    "generator that goes on between runs"
                )

    def _run_shaken(self, number: int, unit: float | None, products: Products) -> Trace:
        steps = OptimizerSteps()
        with self.alike(), steps, RandomRounding(1000 * self._seed + number, unit, products):
            returned = _call(self._reference)
        trace = make_trace(returned, "reference()")
        return trace if isinstance(returned, Trace) else _merge(steps.trace(returned), trace, {})


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


def _call(reference: Callable[[], Any]) -> Any:
    try:
        return reference()
    except (ValueError, RuntimeError) as error:
        if "process group" in str(error):
            error.add_note(
                "reference() runs in the pytest process, which has no ranks: leave collectives to the program, or pass "
                "them to the function that both call"
            )
        raise


def _collect_tensors(returned: Any) -> dict[str, torch.Tensor]:
    if isinstance(returned, torch.Tensor):
        return {"result": returned}
    pairs = returned.items() if isinstance(returned, Mapping) else ((f"result[{i}]", v) for i, v in enumerate(returned))
    return {str(name): value for name, value in pairs if isinstance(value, torch.Tensor)}


def _merge(steps: Trace, values: Trace, order: Mapping[str, int]) -> Trace:
    """One trace of the optimizers' steps and the returned values, in order of computation."""
    records: list[Record] = [*steps]
    for record in values:
        at = order.get(record.key.name, 0)
        records.append(Record(record.key, record.tensor, record.placement, record.calls, at))
    if order:
        records.sort(key=lambda record: record.at)
    return Trace({record.key: record for record in records}, steps.titles)


def _is_equal(first: torch.Tensor, second: torch.Tensor) -> bool:
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
