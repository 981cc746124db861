"""Takes a tensor of the reference apart into the terms that it is the sum of, by the operations that made it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from pytest_gpuperf.parity.operations import Operation, Value

Follow = Callable[[torch.Tensor], torch.Tensor]
"""Carries a term on to the tensor that it is a term of."""

_LINEAR = frozenset(
    """clone detach view t transpose permute reshape alias expand squeeze unsqueeze contiguous neg neg_ select slice
    mul div mul_ div_ lift_fresh unflatten flatten squeeze_copy view_copy expand_copy diagonal narrow
    _to_copy _unsafe_view _reshape_alias""".split()
)
_MOST_TERMS = 64
_DEPTH = 200


@dataclass(frozen=True)
class Split:
    """One way to take a tensor apart."""

    text: str
    """What the terms are, as ``4 chunks of the batch``."""
    names: tuple[str, ...]
    """Of each term."""
    terms: tuple[torch.Tensor, ...]
    """Each in the shape of the whole, float64; their sum is the whole, or its square."""
    squared: bool = False
    """Whether the terms add up to the square of the whole, as those of a norm do."""
    chunked: bool = False
    """Whether the terms are chunks of one sum, and not sums that the reference adds."""


@dataclass(frozen=True)
class _Term:
    value: Value
    path: tuple[Follow, ...]

    def carried(self, tensor: torch.Tensor) -> torch.Tensor:
        for follow in self.path:
            tensor = follow(tensor)
        return tensor


def splits(value: Value, counts: Sequence[int]) -> Iterator[Split]:
    """Ways to take a value apart, those with few terms first.

    Args:
        value: of the reference.
        counts: into how many chunks a sum is cut: ranks, microbatches and the like.
    """
    squared, value = _under_root(value)
    if squared and value.operation is not None and value.operation.name == "linalg_vector_norm":
        yield from _norms(value, counts)
        return
    terms = list(_terms(value))
    if not terms or len(terms) > _MOST_TERMS:
        return
    whole = sum((_double(term.carried(term.value.tensor)) for term in terms), torch.zeros(()))
    if not torch.allclose(whole, value.tensor.double(), rtol=1e-3, atol=1e-6 * float(value.tensor.double().abs().max() + 1e-300)):
        return  # an operation was not as linear as its name
    if len(terms) > 1:
        yield Split(
            f"the {len(terms)} terms that the reference adds up",
            tuple(_name(index, term) for index, term in enumerate(terms)),
            tuple(_double(term.carried(term.value.tensor)) for term in terms),
            squared,
        )
    for count in counts:
        if count * len(terms) > _MOST_TERMS:
            continue
        for way in _chunk_ways(terms, count):
            yield Split(way.text, way.names, way.terms, squared, chunked=True)


def _double(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.double()


def _name(index: int, term: _Term) -> str:
    line = term.value.operation.line if term.value.operation is not None else ""
    made = term.value.operation.name.strip("_") if term.value.operation is not None else "an input"
    return f"term {index} ({made}{f', {line}' if line else ''})"


def _under_root(value: Value) -> tuple[bool, Value]:
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


def _norms(value: Value, counts: Sequence[int]) -> Iterator[Split]:
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
            yield Split(f"{count} chunks of the squares in it", tuple(f"chunk {i}" for i in range(len(squares))), squares, True, True)


def _terms(value: Value, path: tuple[Follow, ...] = (), depth: int = 0) -> Iterator[_Term]:
    operation = value.operation
    if operation is None or depth > _DEPTH:
        yield _Term(value, path)
        return
    name, inputs = operation.name, operation.inputs
    if name in ("add", "add_", "sub", "sub_") and inputs:
        shape, alpha = value.tensor.shape, operation.kwargs.get("alpha", 1)
        signs = (1.0, float(alpha) * (-1 if name.startswith("sub") else 1))
        for argument, sign in zip(operation.args[:2], signs, strict=False):

            def scaled(tensor: torch.Tensor, sign: float = sign, shape: torch.Size = shape) -> torch.Tensor:
                return (tensor.double() * sign).expand(shape)

            if isinstance(argument, Value):
                yield from _terms(argument, (scaled, *path), depth + 1)
            else:
                constant = torch.tensor(float(argument), dtype=torch.float64)
                yield _Term(Value(constant, None), (scaled, *path))
        return
    if name == "copy_" and len(inputs) == 2:
        shape = value.tensor.shape
        yield from _terms(inputs[1], (lambda tensor: tensor.expand(shape), *path), depth + 1)
        return
    if name in _LINEAR and inputs and isinstance(operation.args[0], Value):
        if len(inputs) > 1 and inputs[0].tensor.shape != value.tensor.shape:
            yield _Term(value, path)
            return
        yield from _terms(inputs[0], (_again(operation, 0, value.index), *path), depth + 1)
        return
    if name in ("sum", "mean") and inputs[0].operation is not None and inputs[0].operation.name == "stack":
        stacked = inputs[0].operation
        dim = int(stacked.args[1]) if len(stacked.args) > 1 else int(stacked.kwargs.get("dim", 0))
        count = inputs[0].tensor.shape[dim]
        over = operation.args[1] if len(operation.args) > 1 else None
        if not over or list(over) == [dim]:
            scale = 1.0 if name == "sum" else 1.0 / (inputs[0].tensor.numel() if not over else count)
            for part in stacked.inputs:

                def summed(tensor: torch.Tensor, scale: float = scale, all_: bool = not over) -> torch.Tensor:
                    return (tensor.double().sum() if all_ else tensor.double()) * scale

                yield from _terms(part, (summed, *path), depth + 1)
            return
    if name == "addmm" and len(inputs) == 3:
        shape = value.tensor.shape
        yield from _terms(inputs[0], (lambda tensor: tensor.expand(shape), *path), depth + 1)
        product = Value(inputs[1].tensor @ inputs[2].tensor, None)
        product.operation = Operation(
            operation.number, "mm", torch.ops.aten.mm.default, (inputs[1], inputs[2]), {}, operation.line, inputs[1:]
        )
        yield _Term(product, path)
        return
    yield _Term(value, path)


def _again(operation: Operation, position: int, index: int) -> Follow:
    """Runs an operation on another tensor in place of its argument ``position``."""

    def follow(tensor: torch.Tensor) -> torch.Tensor:
        name = operation.name
        if name in ("_to_copy", "lift_fresh"):
            return tensor
        args = list(operation.args)
        rest = tree_map_only(Value, lambda value: value.tensor.double(), args)
        rest[position] = tensor.double().clone() if name.endswith("_") else tensor.double()
        kwargs = tree_map_only(Value, lambda value: value.tensor, operation.kwargs)
        out = operation.function(*rest, **kwargs)
        return out[index] if isinstance(out, list | tuple) else out

    return follow


def _summed_dims(operation: Operation) -> tuple[int, tuple[int, ...]] | None:
    """Which argument an operation sums over, and along which of its dimensions."""
    name, inputs = operation.name, operation.inputs
    if not inputs or not isinstance(operation.args[0], Value):
        return None
    dims = inputs[0].tensor.dim()
    if name in ("mm", "mv"):
        return 0, (1,)
    if name == "bmm":
        return 0, (2,)
    if name == "dot":
        return 0, (0,)
    if name in ("sum", "mean"):
        over: Any = operation.args[1] if len(operation.args) > 1 else None
        return 0, tuple(d % dims for d in over) if over else tuple(range(dims))
    if name in ("embedding_dense_backward", "native_layer_norm_backward", "_fused_rms_norm_backward"):
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


def _chunk_ways(terms: Sequence[_Term], count: int) -> Iterator[Split]:
    """Cuts the last sum in each term into chunks; a term that is no sum stays whole."""
    masks: list[tuple[str, Callable[[Value, int, int], torch.Tensor | None]]] = [
        (f"{count} chunks of the rows that are summed", _contiguous),
        (f"{count} chunks of the sequence", _along_sequence),
    ]
    for text, mask in masks:
        names, found, cut = [], [], False
        for index, term in enumerate(terms):
            pieces = _pieces(term, count, mask)
            if pieces is None:
                pieces = [term.value.tensor]
            else:
                cut = True
            for number, piece in enumerate(pieces):
                label = f"chunk {number}" if len(pieces) > 1 else _name(index, term)
                names.append(label if len(terms) == 1 or len(pieces) == 1 else f"{label} of {_name(index, term)}")
                found.append(_double(term.carried(piece)))
        if cut and 1 < len(found) <= _MOST_TERMS:
            yield Split(text, tuple(names), tuple(found))


def _contiguous(value: Value, dim: int, count: int) -> torch.Tensor | None:
    size = value.tensor.shape[dim]
    if size < count:
        return None
    lead = _lead(value)
    if len(lead) > 1 and lead[0] % count == 0:
        return (torch.arange(size) // (size // lead[0])) // (lead[0] // count)
    step = -(-size // count)
    return torch.arange(size) // step


def _along_sequence(value: Value, dim: int, count: int) -> torch.Tensor | None:
    lead, size = _lead(value), value.tensor.shape[dim]
    if len(lead) < 2 or lead[0] < 2 or lead[0] * lead[1] != size or lead[1] < count:
        return None
    return (torch.arange(size) % lead[1]) // -(-lead[1] // count)


def _pieces(
    term: _Term, count: int, mask: Callable[[Value, int, int], torch.Tensor | None]
) -> list[torch.Tensor] | None:
    operation = term.value.operation
    if operation is None:
        return None
    summed = _summed_dims(operation)
    if summed is None:
        return None
    position, dims = summed
    argument = operation.args[position]
    for dim in dims:
        owner = mask(argument, dim, count)
        if owner is None:
            continue
        shape = [1] * argument.tensor.dim()
        shape[dim] = -1
        pieces = []
        for number in range(int(owner.max()) + 1):
            kept = argument.tensor * (owner == number).reshape(shape)
            args = list(operation.args)
            args[position] = kept
            out = operation.again(args=tuple(args))
            pieces.append(out[term.value.index] if isinstance(out, list | tuple) else out)
        return pieces
    return None
