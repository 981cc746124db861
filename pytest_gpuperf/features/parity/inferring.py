"""Finds which part of the whole tensor each rank holds: as DTensor says, or as shapes and content tell."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from pytest_gpuperf.features.parity.layout import (
    WHOLE,
    Cut,
    Layout,
    Part,
    Parts,
    cut_chunk,
    cut_zigzag,
    interleave,
    make_positions,
)
from pytest_gpuperf.features.parity.records import Placement, Record

_NEAR = 0.1
"""A part is recognised by its content if it differs from the whole's part by less (norms)."""
_TELLING = 0.8
"""Another deal than the most conventional one needs a distance smaller by this factor."""


class _Cutter:
    """Makes parts of one whole shape, each only once."""

    def __init__(self, shape: Sequence[int]) -> None:
        self.shape = tuple(shape)
        self._positions: torch.Tensor | None = None
        self._made: dict[str, Part] = {}

    def part(self, text: str, cut: Cut) -> Part:
        known = self._made.get(text)
        if known is None:
            if self._positions is None:
                self._positions = make_positions(self.shape)
            known = self._made[text] = Part(text, cut(self._positions))
        return known


def _cut_as_placed(placement: Placement, cutter: _Cutter) -> Part:
    order = list(zip(placement.sizes, placement.coordinate, placement.placements, strict=True))
    if placement.rightmost_first:
        order.reverse()
    cuts = [(int(text.split()[1]), size, at) for size, at, text in order if text.startswith("shard")]

    def cut(index: torch.Tensor) -> torch.Tensor:
        for dim, size, at in cuts:
            index = cut_chunk(index, size, at, dim)
        return index

    return cutter.part(f"cut {cuts}", cut) if cuts else WHOLE


def _list_divisors(number: int) -> list[int]:
    return [one for one in range(1, number + 1) if number % one == 0]


@dataclass(frozen=True, slots=True)
class _Axis:
    """One way in which ranks share a dimension: rank's position is ``rank // stride % count``."""

    count: int
    stride: int

    def at(self, rank: int) -> int:
        return rank // self.stride % self.count


def _list_axes(count: int, holders: int) -> list[_Axis]:
    """Ways in which axes of a mesh deal ``count`` parts to ranks; the innermost axis comes first."""
    return [_Axis(count, stride) for stride in _list_divisors(holders) if holders % (stride * count) == 0]


def _swap_axes(holders: int) -> list[tuple[int, ...]]:
    """Ranks' places by the axes of a mesh in their other order: (dp, tp) where the mesh has (tp, dp)."""
    return [
        tuple(rank % inner * (holders // inner) + rank // inner for rank in range(holders))
        for inner in _list_divisors(holders)[1:-1]
    ]


def _deal_in_order(
    shape: tuple[int, ...], mine: tuple[int, ...], order: tuple[int, ...], cutter: _Cutter
) -> list[Part]:
    """One part each, by the places of ranks; empty if the shapes are no such parts."""
    dims = [dim for dim, (n, m) in enumerate(zip(shape, mine, strict=False)) if n != m]
    if len(mine) != len(shape) or len(dims) != 1 or mine[dims[0]] * len(order) != shape[dims[0]]:
        return []
    dim, count = dims[0], len(order)
    return [cutter.part(f"{dim}:{p}/{count}", partial(cut_chunk, count=count, position=p, dim=dim)) for p in order]


def _iterate_deals(shape: tuple[int, ...], locals_: list[tuple[int, ...]], cutter: _Cutter) -> Iterable[list[Part]]:
    """Deals of parts to the holders, the most conventional ones first."""
    holders = len(locals_)
    if all(one == shape for one in locals_):
        yield [WHOLE] * holders
        return
    if len(set(locals_)) > 1:
        yield from _iterate_uneven_deals(shape, locals_, cutter)
        return
    mine = locals_[0]
    if len(mine) == len(shape):
        yield from _iterate_box_deals(shape, mine, holders, cutter)
    if len(mine) == len(shape) - 1 and shape and holders % shape[0] == 0:
        yield from _iterate_row_deals(shape, mine, holders, cutter)
    size, whole = math.prod(mine), math.prod(shape)
    if size == whole and mine != shape:
        yield [cutter.part(f"flat {mine}", partial(_reshape, shape=mine))] * holders
    elif len(mine) == 1 and whole == size * holders:
        # FSDP1 and ZeRO cut the flattened parameter.
        yield [cutter.part(f"flat {rank}", partial(_cut_flat, begin=rank * size, size=size)) for rank in range(holders)]


def _reshape(index: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    return index.reshape(shape)


def _cut_flat(index: torch.Tensor, begin: int, size: int) -> torch.Tensor:
    return index.reshape(-1)[begin : begin + size]


def _cut_row(index: torch.Tensor, row: int, cut: Cut | None = None) -> torch.Tensor:
    return index[row] if cut is None else cut(index[row])


def _narrow(index: torch.Tensor, dim: int, begin: int, size: int) -> torch.Tensor:
    return index.narrow(dim, begin, size)


def _fuse(index: torch.Tensor, fused: int, count: int, position: int) -> torch.Tensor:
    return torch.cat([cut_chunk(piece, count, position, 0) for piece in index.chunk(fused)])


def _iterate_row_deals(
    shape: tuple[int, ...], mine: tuple[int, ...], holders: int, cutter: _Cutter
) -> Iterable[list[Part]]:
    """The whole stacks what ranks, or groups of them, have for themselves."""
    for axis in _list_axes(shape[0], holders):
        rows = [axis.at(rank) for rank in range(holders)]
        if mine == shape[1:]:
            yield [cutter.part(f"[{row}]", partial(_cut_row, row=row)) for row in rows]
            continue
        for way in _iterate_dim_ways(shape[1:], mine, holders, extra=axis):
            pairs = zip(rows, way, strict=True)
            yield [cutter.part(f"[{row}] {text}", partial(_cut_row, row=row, cut=cut)) for row, (text, cut) in pairs]


def _iterate_box_deals(
    shape: tuple[int, ...], mine: tuple[int, ...], holders: int, cutter: _Cutter
) -> Iterable[list[Part]]:
    for way in _iterate_dim_ways(shape, mine, holders):
        yield [cutter.part(text, cut) for text, cut in way]
    cut_dims = [dim for dim, (n, m) in enumerate(zip(shape, mine, strict=True)) if n != m]
    if len(cut_dims) != 1 or not mine[cut_dims[0]] or shape[cut_dims[0]] % mine[cut_dims[0]]:
        return
    dim = cut_dims[0]
    count = shape[dim] // mine[dim]
    for axis in _list_axes(count, holders):
        ways: list[tuple[str, Callable[..., torch.Tensor]]] = [
            (f"interleaved {dim}", partial(interleave, count=count, dim=dim))
        ]
        if mine[dim] % 2 == 0:
            ways.insert(0, (f"zigzag {dim}", partial(cut_zigzag, count=count, dim=dim)))
        ways += [
            (f"fused {fused}", partial(_fuse, fused=fused, count=count))
            for fused in (2, 3)
            if dim == 0 and mine[0] % fused == 0
        ]
        for text, cut in ways:
            at = [axis.at(rank) for rank in range(holders)]
            yield [cutter.part(f"{text} {p}/{count}", partial(cut, position=p)) for p in at]


def _iterate_dim_ways(
    shape: tuple[int, ...], mine: tuple[int, ...], holders: int, extra: _Axis | None = None
) -> Iterable[list[tuple[str, Cut]]]:
    if len(shape) != len(mine) or any(not m or n % m for n, m in zip(shape, mine, strict=True)):
        return
    options: list[list[_Axis | None]] = [
        [None] if n == m else list(_list_axes(n // m, holders)) for n, m in zip(shape, mine, strict=True)
    ]
    for chosen in itertools.product(*options):
        axes = [one for one in (*chosen, extra) if one is not None]
        if _has_overlap(axes, holders):
            continue  # two dimensions that go by the same axis would leave parts that nobody holds

        yield [(_describe_dims(chosen, rank), partial(_cut_dims, chosen=chosen, rank=rank)) for rank in range(holders)]


def _cut_dims(index: torch.Tensor, chosen: Sequence[_Axis | None], rank: int) -> torch.Tensor:
    for dim, axis in enumerate(chosen):
        if axis is not None:
            index = cut_chunk(index, axis.count, axis.at(rank), dim)
    return index


def _describe_dims(chosen: Sequence[_Axis | None], rank: int) -> str:
    return " ".join(f"{dim}:{axis.at(rank)}/{axis.count}" for dim, axis in enumerate(chosen) if axis is not None)


def _has_overlap(axes: Sequence[_Axis], holders: int) -> bool:
    together = {tuple(axis.at(rank) for axis in axes) for rank in range(holders)}
    return len(together) != math.prod(axis.count for axis in axes)


def _iterate_uneven_deals(
    shape: tuple[int, ...], locals_: list[tuple[int, ...]], cutter: _Cutter
) -> Iterable[list[Part]]:
    """One dimension is cut unevenly, in the order of ranks, or within repeated groups of them."""
    holders = len(locals_)
    if any(len(one) != len(shape) for one in locals_):
        return
    dims = [d for d, n in enumerate(shape) if any(one[d] != n for one in locals_)]
    if len(dims) != 1:
        return
    dim = dims[0]
    for count in reversed(_list_divisors(holders)):
        for axis in _list_axes(count, holders):
            sizes: dict[int, int] = {}
            if not all(sizes.setdefault(axis.at(r), one[dim]) == one[dim] for r, one in enumerate(locals_)):
                continue
            lengths = [sizes[position] for position in range(count)]
            if sum(lengths) != shape[dim]:
                continue
            begins = [sum(lengths[:position]) for position in range(count)]
            boxes = [(begins[axis.at(rank)], lengths[axis.at(rank)]) for rank in range(holders)]
            yield [
                cutter.part(f"{dim}:{begin}+{size}", partial(_narrow, dim=dim, begin=begin, size=size))
                for begin, size in boxes
            ]


def _compute_distance(held: torch.Tensor, wanted: torch.Tensor) -> float:
    size = float(wanted.norm())
    off = float((held - wanted).norm())
    if not math.isfinite(off):
        return 1.0
    return min(off / size, 1.0) if size else float(off > 0)


def infer(
    held: Mapping[int, Record],
    whole: torch.Tensor,
    known: Parts | None = None,
    *,
    free: bool = False,
    order: tuple[int, ...] = (),
) -> Layout | None:
    """Finds each rank's part.

    Only deals that axes of a mesh make are considered, so parts in another order are no layout, but a fault.

    Args:
        held: what ranks hold, by rank.
        whole: the reference's tensor, float64.
        known: parts of the parameter that the tensor belongs to.
        free: whether the axes of the mesh may deal it in their other order, as a batch is dealt.
        order: the ranks' places in which an earlier tensor of the batch was dealt.

    Returns:
        None if no layout explains the shapes.
    """
    cutter = _Cutter(whole.shape)
    shapes = {rank: tuple(record.tensor.shape) for rank, record in held.items()}
    if all(record.placement is not None for record in held.values()):
        parts = {rank: _cut_as_placed(record.placement, cutter) for rank, record in held.items() if record.placement}
        if all(parts[rank].of(whole).shape == shapes[rank] for rank in held):
            return Layout(parts, "DTensor")
    if known is not None and all(r in known and _infer_shape(known[r], whole) == shapes[r] for r in held):
        return Layout({rank: known[rank] for rank in held}, "start")
    ranks = sorted(held)
    tensors = {rank: held[rank].tensor.double() for rank in ranks}
    best: tuple[float, list[Part]] | None = None
    first: tuple[float, list[Part]] | None = None
    count = 0
    orders: list[tuple[tuple[int, ...], list[Part]]] = []
    if free and len(set(shapes.values())) == 1:
        places = [order] if len(order) == len(ranks) else _swap_axes(len(ranks))
        orders = [(one, _deal_in_order(tuple(whole.shape), shapes[ranks[0]], one, cutter)) for one in places]
    others = [deal for _, deal in orders if deal]
    usual = _iterate_deals(tuple(whole.shape), [shapes[rank] for rank in ranks], cutter)
    for deal in itertools.chain(others, usual) if order else itertools.chain(usual, others):
        count += 1
        if deal[0].index is None and len(set(deal)) == 1:
            return Layout(dict(zip(ranks, deal, strict=True)), "shape")
        # The mean over ranks: a rank that holds something wrong decides nothing.
        far = sum(_compute_distance(tensors[r], p.of(whole)) for r, p in zip(ranks, deal, strict=True)) / len(ranks)
        first = first or (far, deal)
        if best is None or far < best[0] - 1e-12:
            best = far, deal
        if far < 1e-3:
            break
    if best is None or first is None:
        return None
    if best[0] > _TELLING * first[0]:
        best = first  # what nothing resembles is taken as the most conventional deal has it
    source = "content" if best[0] < _NEAR else "order of ranks"
    found = next((one for one, deal in orders if deal == best[1]), ())
    return Layout(dict(zip(ranks, best[1], strict=True)), "shape" if count == 1 else source, found)


def _infer_shape(part: Part, whole: torch.Tensor) -> tuple[int, ...] | None:
    if part.index is None:
        return tuple(whole.shape)
    fits = not part.index.numel() or int(part.index.max()) < whole.numel()
    return tuple(part.index.shape) if fits else None  # a scalar state of a cut parameter
