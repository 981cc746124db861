"""Takes a tensor of the reference apart into the terms that it is the sum of, by the operations that made it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from pytest_gpuperf.features.parity.dispatch_internals import map_nested
from pytest_gpuperf.features.parity.operations import Operation, Value

Mask = tuple[int, torch.Tensor, int]
"""A dimension, the chunk of each position along it, and the chunk that is kept."""

_LINEAR = frozenset(
    """clone detach view t transpose permute reshape alias expand squeeze unsqueeze contiguous neg neg_ select slice
    mul div mul_ div_ lift_fresh unflatten flatten squeeze_copy view_copy expand_copy diagonal narrow
    _to_copy _unsafe_view _reshape_alias""".split()  # noqa: SIM905
)
_LINEAR_BACKWARD = frozenset(
    """elu_backward gelu_backward hardtanh_backward leaky_relu_backward select_backward sigmoid_backward silu_backward
    slice_backward softplus_backward tanh_backward threshold_backward _log_softmax_backward_data
    _softmax_backward_data""".split()  # noqa: SIM905
)
"""Backward passes that are linear in the gradient, which is their first argument."""
_WEIGHTS_BACKWARD = frozenset(
    "embedding_dense_backward native_layer_norm_backward _fused_rms_norm_backward".split()  # noqa: SIM905
)
_AS_THEY_ARE = frozenset("_to_copy lift_fresh".split())  # noqa: SIM905  # terms are float64 already
_MOST_TERMS = 64
_DEPTH = 200


@dataclass(frozen=True)
class Split:
    """One way to take a tensor apart."""

    text: str
    """What the terms are, as ``4 chunks of the batch``."""
    names: tuple[str, ...]
    """The name of each term."""
    terms: tuple[torch.Tensor, ...]
    """Each in the shape of the whole, float64; their sum is the whole, or its square."""
    squared: bool = False
    """Whether the terms add up to the square of the whole, as those of a norm do."""
    chunked: bool = False
    """Whether the terms are chunks of one sum, and not sums that the reference adds."""


@dataclass(frozen=True)
class _Step:
    """An operation that is linear in one of its arguments, and carries a term on."""

    run: Callable[[torch.Tensor], torch.Tensor]
    argument: Value
    summed: tuple[int, ...] = ()
    """Dimensions of the argument that it sums over."""


@dataclass(frozen=True)
class _Term:
    value: Value
    path: tuple[_Step, ...]

    def carry(self, at: int = -1, mask: Mask | None = None) -> torch.Tensor:
        """The term in the shape of the whole; ``mask`` keeps a chunk of what the step numbered ``at`` takes."""
        tensor = self.value.tensor.double()
        for number, step in enumerate(self.path):
            if number == at and mask is not None:
                dim, owner, chunk = mask
                shape = [1] * tensor.dim()
                shape[dim] = -1
                tensor = tensor * (owner == chunk).reshape(shape)
            tensor = step.run(tensor)
        return tensor

    def find_last_sum(self) -> int:
        """The number of the step nearest to the whole that sums; -1 if none does."""
        return max((number for number, step in enumerate(self.path) if step.summed), default=-1)


def iterate_splits(value: Value, counts: Sequence[int]) -> Iterator[Split]:
    """Ways to take a value apart, those that stay near to it first.

    Args:
        value: of the reference.
        counts: into how many chunks a sum is cut: ranks, microbatches and the like.
    """
    squared, value = _find_under_root(value)
    if squared and value.operation is not None and value.operation.name == "linalg_vector_norm":
        yield from _iterate_norm_splits(value, counts)
        return
    seen: set[int] = set()
    for through in (None, 0, 1):
        terms = list(itertools.islice(_iterate_terms(value, through), _MOST_TERMS + 1))
        if not terms or len(terms) > _MOST_TERMS or (through is not None and len(terms) in seen):
            continue
        seen.add(len(terms))
        carried = tuple(term.carry() for term in terms)
        whole, size = torch.stack(carried).sum(0), float(value.tensor.double().norm())
        if whole.shape != value.tensor.shape or not float((whole - value.tensor.double()).norm()) <= 1e-3 * size:
            continue  # an operation was not as linear as its name
        if len(terms) > 1:
            names = tuple(_name(index, term) for index, term in enumerate(terms))
            yield Split(f"the {len(terms)} terms that the reference adds up", names, carried, squared)
        for count in counts:
            for text, cut in (("of the rows that are summed", _assign_rows), ("of the sequence", _assign_sequence)):
                way = _chunk(terms, count, f"{count} chunks {text}", cut)
                if way is not None:
                    yield Split(way.text, way.names, way.terms, squared, chunked=True)


def _name(index: int, term: _Term) -> str:
    line = term.value.operation.line if term.value.operation is not None else ""
    made = term.value.operation.name.strip("_") if term.value.operation is not None else "an input"
    if term.value.operation is None and term.value.tensor.numel() == 1:
        made = f"the number {float(term.value.tensor):g}"
    return f"term {index} ({made}{f', {line}' if line else ''})"


def _find_under_root(value: Value) -> tuple[bool, Value]:
    """Finds the square under a root, or a norm: ``(True, what the root is of)``."""
    one = value
    for _ in range(_DEPTH):
        operation = one.operation
        if operation is None:
            return False, value
        if operation.name in ("sqrt", "sqrt_"):
            return True, operation.inputs[0]
        if operation.name == "linalg_vector_norm":
            args = operation.args
            return (True, one) if len(args) < 2 or args[1] == 2 else (False, value)
        if operation.name not in ("clone", "detach", "view", "alias", "squeeze", "reshape", "lift_fresh"):
            return False, value
        one = operation.inputs[0]
    return False, value


def _iterate_norm_splits(value: Value, counts: Sequence[int]) -> Iterator[Split]:
    """A norm of a tensor, or of the norms of several: squares that add up."""
    operation = value.operation
    assert operation is not None
    of = operation.inputs[0]
    if value.tensor.dim():
        return
    inner = of.operation
    if inner is not None and inner.name in ("stack", "cat") and len(inner.inputs) > 1:
        squares = tuple(one.tensor.double().square().sum() for one in inner.inputs)
        names = tuple(f"norm {index}" for index in range(len(squares)))
        yield Split(f"the squares of the {len(squares)} norms in it", names, squares, squared=True)
        return
    flat = of.tensor.double().square()
    for count in counts:
        if flat.dim() and count <= flat.shape[0]:
            squares = tuple(piece.sum() for piece in flat.chunk(count))
            yield Split(
                f"{count} chunks of the squares in it",
                tuple(f"chunk {i}" for i in range(len(squares))),
                squares,
                True,
                True,
            )


def _iterate_terms(value: Value, through: int | None, path: tuple[_Step, ...] = ()) -> Iterator[_Term]:
    """The terms that a value is the sum of.

    Args:
        value: of the reference.
        through: which argument of products is followed to more terms behind them; None stops at the first sum.
        path: the steps from the value to the whole.
    """
    operation = value.operation
    if operation is None or len(path) > _DEPTH or (through is None and any(step.summed for step in path)):
        yield _Term(value, path)
        return
    name, inputs, args = operation.name, operation.inputs, operation.args
    shape = value.tensor.shape
    if name in ("add", "add_", "sub", "sub_") and inputs:
        alpha = float(operation.kwargs.get("alpha", 1)) * (-1 if name.startswith("sub") else 1)
        for argument, sign in zip(args[:2], (1.0, alpha), strict=False):
            if not isinstance(argument, Value):
                argument = Value(torch.tensor(float(argument), dtype=torch.float64), None)
            yield from _iterate_terms(argument, through, (_Step(_make_scaling(sign, shape), argument), *path))
    elif name == "copy_" and len(inputs) == 2:
        yield from _iterate_terms(inputs[1], through, (_Step(_make_scaling(1.0, shape), inputs[1]), *path))
    elif name in ("sum", "mean") and (parts := _list_stacked(operation)):
        for part, scale in parts:
            yield from _iterate_terms(part, through, (_Step(_make_reduction(scale, shape), part), *path))
    elif name == "addmm" and len(inputs) == 3:
        yield from _iterate_terms(inputs[0], through, (_Step(_make_scaling(1.0, shape), inputs[0]), *path))
        product = Operation(
            operation.number, "mm", torch.ops.aten.mm.default, (inputs[1], inputs[2]), {}, operation.line, inputs[1:]
        )
        yield from _iterate_terms(Value(inputs[1].tensor @ inputs[2].tensor, product), through, path)
    elif (sums := _find_summed(operation, through or 0)) is not None:
        position, dims = sums
        step = _Step(_make_rerun(operation, position, value.index), args[position], dims)
        yield from _iterate_terms(args[position], through, (step, *path))
    elif _is_linear(operation, shape, deep=through is not None):
        yield from _iterate_terms(inputs[0], through, (_Step(_make_rerun(operation, 0, value.index), inputs[0]), *path))
    else:
        yield _Term(value, path)


def _is_linear(operation: Operation, shape: torch.Size, *, deep: bool) -> bool:
    if not operation.inputs or not isinstance(operation.args[0], Value):
        return False
    if operation.name in _LINEAR:
        return len(operation.inputs) == 1 or operation.inputs[0].tensor.shape == shape
    return deep and operation.name in _LINEAR_BACKWARD


def _make_scaling(sign: float, shape: torch.Size) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda tensor: (tensor * sign).expand(shape)


def _make_reduction(scale: float, shape: torch.Size) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda tensor: (tensor if tensor.shape == shape else tensor.sum().expand(shape)) * scale


def _list_stacked(operation: Operation) -> list[tuple[Value, float]]:
    """The tensors that a sum or mean was stacked of, with their weights; none if it is of something else."""
    stacked = operation.inputs[0].operation
    if stacked is None or stacked.name != "stack":
        return []
    dim = int(stacked.args[1]) if len(stacked.args) > 1 else int(stacked.kwargs.get("dim", 0))
    over = operation.args[1] if len(operation.args) > 1 else None
    if over and list(over) != [dim]:
        return []
    tensor = operation.inputs[0].tensor
    count = tensor.shape[dim] if over else tensor.numel()
    return [(part, 1.0 if operation.name == "sum" else 1.0 / count) for part in stacked.inputs]


def _make_rerun(operation: Operation, position: int, index: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """Runs an operation on another tensor in place of its argument ``position``, in float64."""

    def double(value: Value) -> torch.Tensor:
        return value.tensor.double() if value.tensor.is_floating_point() else value.tensor

    def run(tensor: torch.Tensor) -> torch.Tensor:
        if operation.name in _AS_THEY_ARE:
            return tensor
        args = list(map_nested(Value, double, list(operation.args)))
        args[position] = tensor.clone() if operation.name.endswith("_") else tensor
        if operation.name.endswith("backward_data"):
            args[-1] = torch.float64  # of the input
        out = operation.function(*args, **map_nested(Value, double, operation.kwargs))
        result: torch.Tensor = out[index] if isinstance(out, list | tuple) else out
        return result

    return run


def _find_summed(operation: Operation, through: int) -> tuple[int, tuple[int, ...]] | None:
    """Which argument an operation sums over, and along which of its dimensions; None if it does not sum."""
    name, inputs = operation.name, operation.inputs
    if not inputs or not isinstance(operation.args[0], Value):
        return None
    dims = inputs[0].tensor.dim()
    if name in ("mm", "bmm"):
        last = dims - 1
        return (0, (last,)) if through == 0 else (1, (last - 1,))
    if name == "mv":
        return 0, (1,)
    if name == "dot":
        return 0, (0,)
    if name in ("sum", "mean"):
        over: Any = operation.args[1] if len(operation.args) > 1 else None
        return 0, tuple(dim % dims for dim in over) if over else tuple(range(dims))
    if name in _WEIGHTS_BACKWARD:
        return 0, tuple(range(max(1, dims - 1)))
    return None


def _lead(value: Value) -> tuple[int, ...]:
    """The shape of a flattened matrix before its leading dimensions were joined: (batch, sequence)."""
    rows = value.tensor.shape
    one = value
    for _ in range(8):
        operation = one.operation
        if operation is None or operation.name not in _LINEAR or not operation.inputs:
            return ()
        one = operation.inputs[0]
        shape = one.tensor.shape
        if len(shape) >= 3:
            lead = tuple(shape[:-1])
            total = 1
            for size in lead:
                total *= size
            return lead if total in rows else ()
    return ()


Cut = Callable[[Value, int, int], "torch.Tensor | None"]


def _chunk(terms: Sequence[_Term], count: int, text: str, cut: Cut) -> Split | None:
    """Cuts the sum in each term into chunks; a term without a sum stays whole."""
    names: list[str] = []
    found: list[torch.Tensor] = []
    is_cut = False
    for index, term in enumerate(terms):
        mask = _find_mask(term, count, cut)
        label = _name(index, term)
        if mask is None:
            names.append(label)
            found.append(term.carry())
            continue
        is_cut = True
        dim, owner = mask
        for chunk in range(int(owner.max()) + 1):
            names.append(f"chunk {chunk}" + (f" of {label}" if len(terms) > 1 else ""))
            found.append(term.carry(term.find_last_sum(), (dim, owner, chunk)))
            if len(found) > _MOST_TERMS:
                return None
    return Split(text, tuple(names), tuple(found)) if is_cut and len(found) > 1 else None


def _find_mask(term: _Term, count: int, cut: Cut) -> tuple[int, torch.Tensor] | None:
    at = term.find_last_sum()
    if at < 0:
        return None
    step = term.path[at]
    for dim in step.summed:
        owner = cut(step.argument, dim, count)
        if owner is not None and int(owner.max()) > 0:
            return dim, owner
    return None


def _assign_rows(value: Value, dim: int, count: int) -> torch.Tensor | None:
    size = value.tensor.shape[dim]
    if size < count:
        return None
    lead = _lead(value)
    if len(lead) > 1 and lead[0] % count == 0:
        return (torch.arange(size) // (size // lead[0])) // (lead[0] // count)
    return torch.arange(size) // -(-size // count)


def _assign_sequence(value: Value, dim: int, count: int) -> torch.Tensor | None:
    lead, size = _lead(value), value.tensor.shape[dim]
    if len(lead) < 2 or lead[0] < 2 or lead[0] * lead[1] != size or lead[1] < count:
        return None
    return (torch.arange(size) % lead[1]) // -(-lead[1] // count)
