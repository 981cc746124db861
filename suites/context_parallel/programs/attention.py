"""Attention over a sequence that is split over R ranks: ring, all-to-all of heads, all-gather of keys and values.

B batch, H query heads, K key and value heads (K divides H), S tokens, D features of a head: query_BHSD, key and value
_BKSD. Rank r holds the tokens ``positions(S, R, layout)[r]`` of all three, and of the output. Tensors are [B, H, S, D],
as torch's scaled_dot_product_attention has them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch.distributed._functional_collectives import all_gather_tensor_autograd, wait_tensor
from torch.nn import functional
from torch.nn.attention.bias import causal_lower_right

from pytest_gpuperf import Context
from suites.shared.step import Step, Tensors

Layout = Literal["contiguous", "head-tail"]

Positions = Sequence[torch.Tensor]
"""Which tokens of the sequence each rank holds, in its order."""

Attention = Callable[[Context, torch.Tensor, torch.Tensor, torch.Tensor, Positions, bool], torch.Tensor]
"""``attention(ctx, query, key, value, positions, causal)``: this rank's output, of this rank's tokens.

``positions[r]`` says which tokens of the sequence rank r holds. Causal tokens see those up to themselves.
"""

SEQUENCE = 2  # the dimension

KERNELS = {"flash": "FLASH_ATTENTION", "efficient": "EFFICIENT_ATTENTION"}  # names of torch.nn.attention.SDPBackend


def positions(tokens: int, degree: int, layout: Layout) -> list[torch.Tensor]:
    """The tokens that each rank holds, in its order.

    A causal token sees as many keys as there are tokens up to it. Where each rank holds one contiguous part, the last
    rank therefore has about 2R - 1 times the first one's work. "head-tail" cuts 2R parts and gives rank r the parts r
    and 2R - 1 - r: the same work for all (Dubey et al. 2024, The Llama 3 Herd of Models, arXiv:2407.21783, 3.3.2).
    """
    parts = degree if layout == "contiguous" else 2 * degree
    if tokens % parts:
        raise ValueError(
            f"a sequence of {tokens} tokens cannot be split over {degree} ranks in the {layout} layout, "
            f"which cuts it into {parts} equal parts: pad it to a multiple of {parts}"
        )
    chunks = torch.arange(tokens).chunk(parts)
    if layout == "contiguous":
        return list(chunks)
    return [torch.cat([chunks[rank], chunks[parts - 1 - rank]]) for rank in range(degree)]


def attend(
    ctx: Context,
    *,
    attention: Attention,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    grad: torch.Tensor,
    causal: bool,
    layout: Layout,
    later: Sequence[Tensors] = (),
) -> Step[Tensors]:
    """Forward and backward of this rank's tokens; the step returns their output and gradients.

    Args:
        ctx: the rank's context.
        attention: what computes them, from this rank's tokens alone.
        query: of the whole sequence, as are ``key`` and ``value``.
        key: see above.
        value: see above.
        grad: the gradient of the output.
        causal: whether tokens see only those before them and themselves.
        layout: which tokens the ranks hold.
        later: query, key, value and grad of the steps after the first one.
    """
    held = positions(query.shape[SEQUENCE], ctx.world_size, layout)
    mine = held[ctx.rank]
    names = ("query", "key", "value")
    steps = [{"query": query, "key": key, "value": value, "grad": grad}, *later]
    coming = itertools.cycle(
        [{name: tensor[:, :, mine].to(ctx.device) for name, tensor in tensors.items()} for tensors in steps]
    )
    on_device = [tokens.to(ctx.device) for tokens in held]

    def step() -> Tensors:
        now = next(coming)
        leaves = [now[name].detach().requires_grad_() for name in names]
        output = attention(ctx, leaves[0], leaves[1], leaves[2], on_device, causal)
        gradients = torch.autograd.grad(output, leaves, now["grad"])
        return {"output": output} | {f"{name} gradient": g for name, g in zip(names, gradients, strict=True)}

    return step


def rotated(ctx: Context, tensor: torch.Tensor, distance: int) -> torch.Tensor:
    """What the rank ``distance`` before this one holds; all ranks call it at the same time."""
    received = torch.empty_like(tensor)
    to, source = (ctx.rank + distance) % ctx.world_size, (ctx.rank - distance) % ctx.world_size
    sent = dist.P2POp(dist.isend, tensor.contiguous(), to, ctx.group)
    for work in dist.batch_isend_irecv([sent, dist.P2POp(dist.irecv, received, source, ctx.group)]):
        work.wait()
    return received


class _Rotate(torch.autograd.Function):
    """Tensors go to the next rank, gradients to the one before.

    All ranks must use what they receive, if only with weight 0: a rank that did not would send no gradient back, and
    the rank that waits for one would wait forever.
    """

    @staticmethod
    def forward(function: Any, tensor: torch.Tensor, ctx: Context) -> torch.Tensor:
        function.rank = ctx
        return rotated(ctx, tensor, 1)

    @staticmethod
    def backward(function: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return rotated(function.rank, gradients[0], -1), None


def rotate(ctx: Context, tensor: torch.Tensor) -> torch.Tensor:
    """What the rank before this one holds; its gradient goes back there."""
    received: torch.Tensor = _Rotate.apply(tensor, ctx)  # type: ignore[no-untyped-call]
    return received


def _scores(
    query: torch.Tensor, key: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor, causal: bool
) -> torch.Tensor:
    scores = query @ key.mT / math.sqrt(query.shape[-1])
    return scores.masked_fill(rows[:, None] < columns, -math.inf) if causal else scores


def ring_attention(
    ctx: Context,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    positions: Positions,
    causal: bool,
) -> torch.Tensor:
    """Keys and values go once around the ring, while each rank keeps its queries.

    Ring attention: Liu et al. 2023, arXiv:2310.01889. What has arrived so far is kept as a sum that is not normalized
    yet, its normalizer, and the largest score: the online softmax of Milakov and Gimelshein 2018, arXiv:1805.02867,
    algorithm 3. Written by hand, since torch's own context_parallel is for CUDA's kernels alone. Like those it computes
    in float32 at least, and sends what it was given.
    """
    dtype = torch.promote_types(query.dtype, torch.float32)
    groups = query.shape[1] // key.shape[1]
    rows = positions[ctx.rank]
    held = torch.stack([key, value])
    query = query.to(dtype)
    # The rank's own tokens come first: each query sees at least itself, and its largest score is finite from then on.
    largest = query.new_full((*query.shape[:-1], 1), -math.inf)
    total = torch.zeros_like(largest)
    weighted = torch.zeros_like(query)
    for distance in range(ctx.world_size):
        if distance:
            held = rotate(ctx, held)
        columns = positions[(ctx.rank - distance) % ctx.world_size]
        # Only K heads travel; each serves H/K query heads.
        some_keys, some_values = held.to(dtype).repeat_interleave(groups, dim=2)
        scores = _scores(query, some_keys, rows, columns, causal)
        # The result does not depend on the largest score, which only keeps exp from overflowing: no gradient.
        seen = torch.maximum(largest, scores.detach().amax(-1, keepdim=True))
        shrink, exponentials = (largest - seen).exp(), (scores - seen).exp()
        total = total * shrink + exponentials.sum(-1, keepdim=True)
        weighted = weighted * shrink + exponentials @ some_values
        largest = seen
    return (weighted / total).to(held.dtype)


class _AllToAll(torch.autograd.Function):
    """Part r of the first dimension goes to rank r; the gradients go back in the same way."""

    @staticmethod
    def forward(function: Any, parts: torch.Tensor, ctx: Context) -> torch.Tensor:
        function.rank = ctx
        received = torch.empty_like(parts, memory_format=torch.contiguous_format)
        dist.all_to_all_single(received, parts.contiguous(), group=ctx.group)
        return received

    @staticmethod
    def backward(function: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return _AllToAll.forward(function, gradients[0], function.rank), None


def all_to_all(ctx: Context, tensor: torch.Tensor, *, split: int, join: int) -> torch.Tensor:
    """Rank r gets part r of dimension ``split`` from all ranks, joined along ``join`` in the order of the ranks."""
    parts = torch.stack(tensor.chunk(ctx.world_size, split))
    received: torch.Tensor = _AllToAll.apply(parts, ctx)  # type: ignore[no-untyped-call]
    return torch.cat(received.unbind(), join)


def ulysses_attention(
    ctx: Context, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, positions: Positions, causal: bool
) -> torch.Tensor:
    """An all-to-all gives each rank some heads of all tokens, another one gives the tokens back.

    DeepSpeed-Ulysses: Jacobs et al. 2023, arXiv:2309.14509, section 3.1. Each rank sends and receives (R-1)/R of its
    query, key, value and output, whatever R is; the ring's keys and values make R - 1 hops.
    """
    for name, tensor in {"query": query, "key and value": key}.items():
        if tensor.shape[1] % ctx.world_size:
            raise ValueError(
                f"{tensor.shape[1]} {name} heads cannot be split over {ctx.world_size} ranks: "
                "repeat heads, take a divisor as the degree, or ring attention, which splits none"
            )
    # All tokens, in the order of the ranks that hold them; the kernels' causal masks want them in their own.
    gathered = torch.cat(list(positions))
    order = gathered.argsort()
    query, key, value = (all_to_all(ctx, tensor, split=1, join=SEQUENCE)[:, :, order] for tensor in (query, key, value))
    output = functional.scaled_dot_product_attention(
        query, key, value, is_causal=causal, enable_gqa=query.shape[1] != key.shape[1]
    )
    return all_to_all(ctx, output[:, :, gathered], split=SEQUENCE, join=1)


def ordered_ulysses_attention(
    ctx: Context, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, positions: Positions, causal: bool
) -> torch.Tensor:
    """Computes Ulysses attention for the contiguous layout only: all tokens arrive in their order, so none is moved."""
    query, key, value = (all_to_all(ctx, tensor, split=1, join=SEQUENCE) for tensor in (query, key, value))
    output = functional.scaled_dot_product_attention(
        query, key, value, is_causal=causal, enable_gqa=query.shape[1] != key.shape[1]
    )
    return all_to_all(ctx, output, split=SEQUENCE, join=1)


def all_gather_attention(layout: Layout) -> Attention:
    """Each rank gathers all keys and values, and its queries see those up to their own (Llama 3, section 3.3.2).

    The rank's tokens are one part of the sequence, or in the head-tail layout two. Of each part the keys up to its end
    are what torch's kernels take with a causal mask that ends at the last key.
    """
    parts = 1 if layout == "contiguous" else 2

    def attention(
        ctx: Context, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, positions: Positions, causal: bool
    ) -> torch.Tensor:
        degree = ctx.world_size
        keys, values = (_all_tokens(ctx, tensor, parts) for tensor in (key, value))
        mine = (ctx.rank, parts * degree - 1 - ctx.rank)[:parts]
        seen = []
        for number, own in zip(mine, query.chunk(parts, SEQUENCE), strict=True):
            tokens = own.shape[SEQUENCE]
            until = (number + 1) * tokens if causal else keys.shape[SEQUENCE]
            mask = causal_lower_right(tokens, until) if causal and tokens < until else None
            seen.append(
                functional.scaled_dot_product_attention(
                    own,
                    keys[:, :, :until],
                    values[:, :, :until],
                    mask,
                    is_causal=causal and tokens == until,
                    enable_gqa=query.shape[1] != key.shape[1],
                )
            )
        return torch.cat(seen, SEQUENCE)

    return attention


def _all_tokens(ctx: Context, own: torch.Tensor, parts: int) -> torch.Tensor:
    """All ranks' parts in the order of the sequence; gradients are summed over the ranks."""
    gathered = wait_tensor(all_gather_tensor_autograd(own.contiguous(), 0, ctx.group))
    of_ranks = [of_rank.chunk(parts, SEQUENCE) for of_rank in gathered.chunk(ctx.world_size)]
    heads = [of_rank[0] for of_rank in of_ranks]
    tails = [of_rank[1] for of_rank in reversed(of_ranks)] if parts == 2 else []
    return torch.cat([*heads, *tails], SEQUENCE)


def torch_ring_attention(
    ctx: Context,
    *,
    rotation: Literal["allgather", "alltoall"],
    kernel: Literal["flash", "efficient"],
    causal: bool,
    layout: Layout,
    **tensors: Any,
) -> Step[Tensors]:
    """Torch's own: ``context_parallel`` turns scaled_dot_product_attention into a ring; on CUDA alone.

    It is experimental; the options that it can only be given by private names are here. Its load balancing is the
    head-tail layout, and is for causal attention alone.
    """
    from torch.distributed.tensor.experimental import context_parallel
    from torch.distributed.tensor.experimental._attention import _cp_options, set_rotate_method

    # Here, since this module travels to the ranks by value, and torch 2.11's SDPBackend cannot.
    from torch.nn.attention import SDPBackend, sdpa_kernel

    mesh = ctx.mesh((ctx.world_size,))
    step = attend(ctx, attention=_whole_attention, causal=causal, layout=layout, **tensors)
    # The context splits the buffers it is given. The step's tensors are split already; one of the sequence's length
    # tells it that length.
    tokens = tensors["query"].shape[SEQUENCE]

    def within() -> Tensors:
        set_rotate_method(rotation)
        _cp_options.enable_load_balance = layout == "head-tail"
        indices = torch.arange(tokens, device=ctx.device)
        with (
            sdpa_kernel(getattr(SDPBackend, KERNELS[kernel])),
            context_parallel(mesh, buffers=[indices], buffer_seq_dims=[0]),
        ):
            return step()

    return within


def _whole_attention(
    ctx: Context, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, positions: Positions, causal: bool
) -> torch.Tensor:
    return functional.scaled_dot_product_attention(
        query, key, value, is_causal=causal, enable_gqa=query.shape[1] != key.shape[1]
    )
