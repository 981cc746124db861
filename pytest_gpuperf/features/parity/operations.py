"""The operations that a reference ran: what was computed from what, so that a wrong tensor can be taken apart."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from pytest_gpuperf.features.parity.dispatch_internals import OperationsMode, map_nested

_TORCH, _OWN = os.path.dirname(torch.__file__), os.path.dirname(__file__)
_ROOM = 1 << 28
"""Bytes of snapshots that are kept; a larger reference is judged without its operations."""
_DRAWS = frozenset(
    "bernoulli bernoulli_ exponential_ multinomial native_dropout rrelu_with_noise".split()  # noqa: SIM905
)

_MOVES = frozenset(
    """alias as_strided cat clone constant_pad_nd contiguous copy_ detach expand flatten index_select lift_fresh
    permute reshape select slice squeeze stack t transpose unflatten unsqueeze view
    _reshape_alias _to_copy _unsafe_view""".split()  # noqa: SIM905
)


@dataclass(eq=False, repr=False)
class Value:
    """A tensor at a point of the run."""

    tensor: torch.Tensor
    """A snapshot, detached."""
    operation: Operation | None
    """Which operation made it; None if it was there before."""
    index: int = 0
    """Which of the operation's results it is."""


@dataclass(eq=False, repr=False)
class Operation:
    """One operation of the reference."""

    number: int
    name: str
    function: Any
    args: Any
    """Arguments, with a ``Value`` in place of each tensor."""
    kwargs: dict[str, Any]
    line: str
    """The user's line that ran it, as ``model.py:12``; of a backward pass, the line that called it."""
    inputs: list[Value] = field(default_factory=list)

    def again(self, **replaced: Any) -> Any:
        """Runs it again; ``args=`` replaces the arguments, which hold a ``Value`` or a tensor for each tensor."""
        args = map_nested(Value, lambda value: value.tensor, replaced.get("args", self.args))
        return self.function(*args, **map_nested(Value, lambda value: value.tensor, self.kwargs))


_Place = tuple[int, int, tuple[int, ...], tuple[int, ...]]


class Operations(OperationsMode):
    """Keeps each operation with snapshots of what it took and returned, up to 256 MiB."""

    def __init__(self, room: int = _ROOM) -> None:
        super().__init__()
        self._values: dict[_Place, Value] = {}
        self._made: dict[_Place, int] = {}
        self._written: dict[int, int] = {}
        self._alive: list[Any] = []
        self._count = 0
        self._drew: set[str] = set()
        self._room = room

    @property
    def complete(self) -> bool:
        """Whether all operations had room."""
        return self._room >= 0

    def operate(self, function: Any, name: str, args: Any, kwargs: dict[str, Any]) -> Any:
        """Runs an operation, and keeps it."""
        if self._room < 0:
            return function(*args, **kwargs)
        inputs: list[Value] = []

        def take(tensor: torch.Tensor) -> Value:
            value = self._make_value(tensor)
            inputs.append(value)
            return value

        kept_args = map_nested(torch.Tensor, take, args)
        kept_kwargs = map_nested(torch.Tensor, take, kwargs)
        out = function(*args, **kwargs)
        self._count += 1
        operation = Operation(self._count, name, function, kept_args, kept_kwargs, _find_line(), inputs)
        if name in _DRAWS and any(one.operation is not None and one.operation.inputs for one in inputs):
            self._drew.add(name.strip("_"))
        in_place = name.endswith("_")
        results = args[0] if in_place and args else out
        for index, tensor in enumerate(results if isinstance(results, list | tuple) else [results]):
            if isinstance(tensor, torch.Tensor) and tensor.layout == torch.strided:
                self._keep(tensor, Value(self._take_snapshot(tensor), operation, index))
        self._note_writes(name, args, out)
        if self._room < 0:
            for kept in (self._values, self._made, self._written, self._alive):
                kept.clear()
        return out

    def _note_writes(self, name: str, args: Any, out: Any) -> None:
        results = args[0] if name.endswith("_") and args else out
        for tensor in results if isinstance(results, list | tuple) else [results]:
            if isinstance(tensor, torch.Tensor) and tensor.layout == torch.strided:
                storage = tensor.untyped_storage()
                pointer = storage.data_ptr()
                if name.endswith("_") or pointer not in self._written:
                    self._written[pointer] = self._count
                    self._alive.append(storage)  # its address must not be used again

    def _take_snapshot(self, tensor: torch.Tensor) -> torch.Tensor:
        self._room -= tensor.numel() * tensor.element_size()
        return tensor.detach().clone()

    def _keep(self, tensor: torch.Tensor, value: Value) -> None:
        place = _place(tensor)
        self._values[place] = value
        self._made[place] = self._count
        if value.operation is not None and value.operation.name.endswith("_"):
            self._written[place[0]] = self._count

    def _make_value(self, tensor: torch.Tensor) -> Value:
        if tensor.layout != torch.strided:
            return Value(tensor.detach(), None)
        place = _place(tensor)
        known = self._values.get(place)
        if known is not None and self._made[place] >= self._written.get(place[0], 0):
            return known
        value = Value(self._take_snapshot(tensor), None)  # a leaf, or a view of what was written since
        self._keep(tensor, value)
        self._alive.append(tensor.untyped_storage())
        return value

    @property
    def drew(self) -> tuple[str, ...]:
        """Operations that drew random numbers by what was computed, such as ``multinomial``."""
        return tuple(sorted(self._drew))

    @property
    def count(self) -> int:
        """How many operations have run."""
        return self._count

    def order(self, tensor: torch.Tensor) -> int:
        """The number of the operation that computed the tensor last; copies, stacks and views do not count.

        Returns:
            0 of a tensor that is computed from no other, such as counts and drawn samples: it follows from nothing.
        """
        value = self.value(tensor)
        return _find_computed_step(value) if value is not None else 0

    def value(self, tensor: torch.Tensor) -> Value | None:
        """What is known of a tensor that the reference holds; None if nothing is."""
        if not self.complete or tensor.layout != torch.strided:
            return None
        place = _place(tensor)
        known = self._values.get(place)
        return known if known is not None and self._made[place] >= self._written.get(place[0], 0) else None


def _find_line() -> str:
    frame = inspect.currentframe()
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith((_TORCH, _OWN)) and not file.startswith("<"):
            return f"{os.path.basename(file)}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def _place(tensor: torch.Tensor) -> _Place:
    return (
        tensor.untyped_storage().data_ptr(),
        int(tensor.storage_offset()),
        tuple(tensor.shape),
        tuple(tensor.stride()),
    )


def _find_computed_step(value: Value) -> int:
    latest, stack, seen = 0, [value], {id(value)}
    while stack:
        operation = stack.pop().operation
        if operation is None or not operation.inputs:
            continue
        if operation.name not in _MOVES:
            latest = max(latest, operation.number)
            continue
        for one in operation.inputs:
            if id(one) not in seen:
                seen.add(id(one))
                stack.append(one)
    return latest


def iterate_ancestors(value: Value, seen: set[int]) -> Iterator[Value]:
    """The value and all that it was computed from, without those in ``seen``, to which they are added."""
    stack = [value]
    while stack:
        one = stack.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        if one.operation is not None:
            stack += one.operation.inputs
