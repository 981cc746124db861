"""How tokens travel to their experts and back: exact splits or padded ones, all at once or in chunks that overlap.

T tokens a rank, k choices each, E experts on R ranks, D features, at most C assignments of a rank for an expert.
Exact splits send the rows that there are: ranks exchange their counts first, and the host waits for them. Padded splits
send C rows for each expert, whatever there is: nobody needs to know a count, and zeros travel.

A chunk holds the same part of each expert's places. Each chunk has a stream of its own, in which its rows go there,
through the experts, and back: while one chunk is on the links, another computes. Autograd takes the same streams.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._functional_collectives import all_to_all_single_autograd

from pytest_gpuperf import Context


def softmax_of_chosen(scores: torch.Tensor) -> torch.Tensor:
    """Mixtral's gate (arXiv 2401.04088, section 2.1): softmax over the scores of the chosen experts."""
    return scores.softmax(dim=-1)


def scores_themselves(scores: torch.Tensor) -> torch.Tensor:
    """No function at all: whole numbers stay whole, and results are exact."""
    return scores


GATES: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "softmax": softmax_of_chosen,
    "scores": scores_themselves,
}


def chosen_by(
    parameter: torch.Tensor, x: torch.Tensor, *, k: int, capacity: int, gate: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """The gate: for each token the weights of the experts that it goes to, and their numbers, both T x k.

    Weights of 16-bit tokens are in float32: in bfloat16 a score of 20 is off by up to 0.06, and its weight by 6 %.

    Raises:
        ValueError: k is no number of experts, or no token fits.
    """
    experts = len(parameter)
    if not 1 <= k <= experts:
        raise ValueError(f"a token goes to 1 to {experts} of {experts} experts, got k = {k}")
    if capacity < 1:
        raise ValueError(f"an expert's capacity must be 1 or more, got {capacity}")
    exact = torch.promote_types(x.dtype, torch.float32)
    scores = nn.functional.linear(x.to(exact), parameter.to(exact))
    # Not topk, which leaves open which of equal scores comes first: the lower expert does, on every device.
    ranked, by_score = scores.sort(dim=-1, descending=True, stable=True)
    weights, chosen = GATES[gate](ranked[:, :k]), by_score[:, :k]
    return weights, chosen


Lanes = Sequence[torch.cuda.Stream | None]
"""A stream for each chunk; None: the current one, as on CPUs."""


class Peers(Protocol):
    """The ranks that share the experts, as one of them sees them: all ranks of a context, or some."""

    @property
    def world_size(self) -> int:
        """How many they are."""

    @property
    def group(self) -> dist.ProcessGroup:
        """Their group."""

    @property
    def device(self) -> torch.device:
        """The rank's device."""


class ExpertWeights(Protocol):
    """The rank's experts: ``first`` and ``second``."""

    def __getitem__(self, name: str, /) -> torch.Tensor: ...


def lanes(ctx: Context, chunks: int) -> Lanes:
    """Streams for so many chunks; a single chunk needs none of its own."""
    if chunks == 1 or ctx.device.type != "cuda":
        return [None] * chunks
    return [torch.cuda.Stream() for _ in range(chunks)]


@dataclass(frozen=True, slots=True)
class Splits:
    """How many rows a rank sends and receives, by chunk, rank and expert of that rank; on the host."""

    sends: list[list[list[int]]]
    receives: list[list[list[int]]]


def expert_places(chosen: torch.Tensor, experts: int) -> tuple[torch.Tensor, torch.Tensor]:
    """For each assignment (T x k) its place among those for its expert, and how many each expert has.

    First choices come before second ones, then in the order of the tokens. The host waits for nothing.
    """
    by_priority = chosen.T.reshape(-1)
    order = by_priority.argsort(stable=True)
    counts = torch.zeros(experts, dtype=torch.int64, device=chosen.device)
    counts.index_add_(0, by_priority, torch.ones_like(by_priority))
    begins = counts.cumsum(0) - counts
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order), device=chosen.device) - begins[by_priority[order]]
    return place.view(chosen.T.shape).T, counts


def expert_exchange(
    ctx: Peers,
    parameters: ExpertWeights,
    x: torch.Tensor,
    weights: torch.Tensor,
    chosen: torch.Tensor,
    *,
    capacity: int,
    padded: bool,
    lanes: Lanes,
) -> torch.Tensor:
    """The weighted sum of what the chosen experts make of each of the rank's tokens.

    Args:
        ctx: the rank's context, or the ranks that share the experts.
        parameters: ``first`` and ``second`` of the rank's experts.
        x: T x D.
        weights: T x k.
        chosen: T x k, numbers of experts.
        capacity: assignments that an expert takes from one rank.
        padded: whether a rank sends as many rows for each expert.
        lanes: one for each chunk.
    """
    (tokens, k), chunks = chosen.shape, len(lanes)
    experts = len(parameters["first"]) * ctx.world_size
    place, counts = expert_places(chosen, experts)
    width = -(-capacity // chunks)
    starts = torch.arange(chunks, device=x.device)[:, None] * width
    most = (capacity - starts).clamp(0, width)
    held = most.expand(chunks, experts) if padded else (counts.clamp(max=capacity) - starts).clamp(min=0).minimum(most)
    splits = _padded_splits(ctx, experts, capacity, chunks) if padded else _exact_splits(ctx, held)
    total = sum(rows for chunk in splits.sends for rank in chunk for rows in rank)
    # Rows lie chunk by chunk, of each chunk expert by expert. Beyond the last one: no row, which counts as zeros.
    begins = (held.reshape(-1).cumsum(0) - held.reshape(-1)).view(chunks, experts)
    chunk = (place // width).clamp(max=chunks - 1)
    position = (begins[chunk, chosen] + place % width).masked_fill(place >= capacity, total).reshape(-1)
    assignment = torch.full((total + 1,), tokens * k, device=x.device)
    assignment.scatter_(0, position, torch.arange(tokens * k, device=x.device))
    assignment = assignment[:-1]

    rows = moved_rows(x, assignment // k, position.view(tokens, k))
    returned = _through_experts(ctx, parameters, rows, splits, lanes, padded)
    each = moved_rows(returned, position, assignment[:, None]).view(tokens, k, x.shape[1])
    return (each * weights.unsqueeze(-1)).sum(1).to(x.dtype)


class _Move(torch.autograd.Function):
    """Rows to other places, and their gradients back; both by reading, which needs no atomic addition."""

    @staticmethod
    def forward(function: Any, rows: torch.Tensor, there: torch.Tensor, back: torch.Tensor) -> torch.Tensor:
        function.save_for_backward(back)
        return _taken(rows, there)

    @staticmethod
    def backward(function: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (back,) = function.saved_tensors
        taken = _taken(gradients[0], back.reshape(-1))
        return taken.view(*back.shape, taken.shape[1]).sum(1), None, None


def moved_rows(rows: torch.Tensor, there: torch.Tensor, back: torch.Tensor) -> torch.Tensor:
    """Row ``there[i]`` at place i, and zeros if there is no such row; ``back[n]`` are the places that row n has."""
    result: torch.Tensor = _Move.apply(rows, there, back)  # type: ignore[no-untyped-call]
    return result


def _taken(rows: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    return torch.cat([rows, rows.new_zeros(1, rows.shape[1])]).index_select(0, index)


def _padded_splits(ctx: Peers, experts: int, capacity: int, chunks: int) -> Splits:
    width, local = -(-capacity // chunks), experts // ctx.world_size
    rows = [max(0, min(width, capacity - chunk * width)) for chunk in range(chunks)]
    both = [[[count] * local for _ in range(ctx.world_size)] for count in rows]
    return Splits(both, both)


def _exact_splits(ctx: Peers, held: torch.Tensor) -> Splits:
    """Tells each rank what it will receive; ``held`` has the rows of each chunk and expert."""
    sends = held.view(len(held), ctx.world_size, -1).transpose(0, 1).contiguous()
    receives = torch.empty_like(sends)
    dist.all_to_all_single(receives, sends, group=ctx.group)
    # One wait of the host for both.
    both: list[list[list[list[int]]]] = torch.stack([sends, receives]).transpose(1, 2).tolist()
    return Splits(*both)


def _through_experts(
    ctx: Peers, parameters: ExpertWeights, rows: torch.Tensor, splits: Splits, lanes: Lanes, padded: bool
) -> torch.Tensor:
    """All rows there and back, in their order. Every chunk sets out before the first is computed."""
    main = torch.cuda.current_stream() if ctx.device.type == "cuda" else None
    # Views, made on the main stream: the gradients of all chunks are added up there.
    first, second = (parameters[name].view_as(parameters[name]) for name in ("first", "second"))
    parts = rows.split([sum(map(sum, chunk)) for chunk in splits.sends])
    sizes = [
        ([sum(rank) for rank in sends], [sum(rank) for rank in receives])
        for sends, receives in zip(splits.sends, splits.receives, strict=True)
    ]
    arrived = []
    for lane, part, (sends, receives) in zip(lanes, parts, sizes, strict=True):
        with _on(lane):
            if lane is not None and main is not None:
                lane.wait_stream(main)
            arrived.append(all_to_all_single_autograd(part, receives, sends, ctx.group))
    returned = []
    for lane, part, (sends, receives), counts in zip(lanes, arrived, sizes, splits.receives, strict=True):
        with _on(lane):
            made = (_experts_of_equal if padded else _experts_of)(first, second, part, counts)
            returned.append(all_to_all_single_autograd(made, sends, receives, ctx.group))
    for lane in lanes:
        if lane is not None and main is not None:
            main.wait_stream(lane)
    return torch.cat(returned)


def _on(lane: torch.cuda.Stream | None) -> contextlib.AbstractContextManager[Any]:
    return contextlib.nullcontext() if lane is None else torch.cuda.stream(lane)


def _experts_of(
    first: torch.Tensor, second: torch.Tensor, arrived: torch.Tensor, counts: list[list[int]]
) -> torch.Tensor:
    """Each expert on its rows, which come rank by rank, of each rank expert by expert, and stay in that order."""
    local = len(first)
    pieces = arrived.split([count for of_rank in counts for count in of_rank])
    made: list[torch.Tensor] = [arrived] * len(pieces)
    for expert, (to_hidden, back) in enumerate(zip(first.unbind(), second.unbind(), strict=True)):
        x = torch.cat(pieces[expert::local])
        output = nn.functional.linear(nn.functional.linear(x, to_hidden).relu(), back)
        made[expert::local] = output.split([of_rank[expert] for of_rank in counts])
    return torch.cat(made)


def _experts_of_equal(
    first: torch.Tensor, second: torch.Tensor, arrived: torch.Tensor, counts: list[list[int]]
) -> torch.Tensor:
    """Each expert on its rows, as many for each: one product of all experts at once."""
    ranks, local, rows, width = len(counts), len(counts[0]), counts[0][0], arrived.shape[1]
    x = arrived.view(ranks, local, rows, width).transpose(0, 1).reshape(local, ranks * rows, width)
    output = torch.bmm(torch.bmm(x, first.mT).relu(), second.mT)
    return output.view(local, ranks, rows, width).transpose(0, 1).reshape(ranks * local * rows, width)
