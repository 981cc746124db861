"""Which part of the whole tensor each rank holds, and what a declaration gives it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Part:
    """A rank's part of a whole tensor."""

    text: str
    """Says which part; equal texts are equal parts."""
    index: torch.Tensor | None
    """Flat positions in the whole, in the shape of the part; None of the whole itself."""

    def of(self, whole: torch.Tensor) -> torch.Tensor:
        """Cuts the part out of a whole tensor."""
        return whole if self.index is None else whole.reshape(-1)[self.index]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Part) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)


Parts = Mapping[int, Part]
"""By rank."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The part of each rank, and how it was found."""

    parts: dict[int, Part]
    source: str
    """``declared``, ``DTensor``, ``shape``, ``content``, ``start`` or ``order of ranks``."""
    order: tuple[int, ...] = ()
    """Each rank's place in a batch that is dealt in another order than that of ranks; empty if it is in that order."""


class LayoutError(ValueError):
    """A declared layout that cannot be read, or that does not fit."""


Cut = Callable[[torch.Tensor], torch.Tensor]


def cut_chunk(index: torch.Tensor, count: int, position: int, dim: int) -> torch.Tensor:
    """One of ``count`` pieces as ``torch.chunk`` cuts them; empty beyond the last one."""
    pieces = torch.chunk(index, count, dim)
    return pieces[position] if position < len(pieces) else index.narrow(dim, 0, 0)


def cut_zigzag(index: torch.Tensor, count: int, position: int, dim: int) -> torch.Tensor:
    """Two of ``2 * count`` pieces, one from each end, as causal attention over a ring deals them."""
    pieces = torch.chunk(index, 2 * count, dim)
    return torch.cat([pieces[position], pieces[2 * count - 1 - position]], dim)


def interleave(index: torch.Tensor, count: int, position: int, dim: int) -> torch.Tensor:
    """Every ``count``-th entry of a dimension."""
    return index.index_select(dim, torch.arange(position, index.shape[dim], count))


def make_positions(shape: Sequence[int]) -> torch.Tensor:
    """Flat positions of all elements, in this shape."""
    return torch.arange(math.prod(shape)).reshape(tuple(shape))


WHOLE = Part("whole", None)


def cut_as_declared(text: str, rank: int, mesh: Mapping[str, int], world: int, shape: Sequence[int]) -> Part:
    """The part that a declaration gives to a rank.

    Args:
        text: ``replicated``, ``shard(0)``, ``zigzag(0)``, ``interleaved(0)``, ``rank-local``, each also with
            ``over AXIS``, and several joined by commas.
        rank: in the world.
        mesh: sizes of the mesh's axes; the last one counts fastest.
        world: number of ranks.
        shape: of the whole.

    Raises:
        LayoutError: the text is none of these, or names an axis that the mesh lacks.
    """
    coordinate, rest = {}, rank
    for axis in reversed(list(mesh)):
        coordinate[axis] = rest % mesh[axis]
        rest //= mesh[axis]
    index = make_positions(shape)
    for piece in text.split(","):
        found = re.fullmatch(
            r"\s*(replicated|shard|zigzag|interleaved|rank-local)(?:\((-?\d+)\))?(?: over (\w+))?\s*", piece
        )
        if found is None:
            raise LayoutError(
                f"layout {text!r} cannot be read: write replicated, shard(0), zigzag(0), interleaved(0), rank-local, "
                "partial(sum) or partial(mean), with 'over AXIS' for one axis of mesh=, joined by commas"
            )
        kind, dim, axis = found[1], int(found[2] or 0), found[3]
        if axis is not None and axis not in mesh:
            raise LayoutError(
                f"layout {text!r} names axis {axis!r}, and the mesh has {', '.join(mesh) or 'no axes'}: give mesh="
            )
        position, count = (coordinate[axis], mesh[axis]) if axis is not None else (rank, world)
        if kind == "shard":
            index = cut_chunk(index, count, position, dim)
        elif kind == "zigzag":
            index = cut_zigzag(index, count, position, dim)
        elif kind == "interleaved":
            index = interleave(index, count, position, dim)
        elif kind == "rank-local":
            if position >= index.shape[0]:
                raise LayoutError(f"layout {text!r}: the reference has {index.shape[0]} entries for {count} ranks")
            index = index[position]
    if index.shape == tuple(shape) and torch.equal(index, make_positions(shape)):
        return WHOLE
    return Part(f"{text}: {tuple(index.flatten()[:1].tolist())} {tuple(index.shape)} {int(index.sum())}", index)
