"""A mixture of experts whose E experts lie E / R on each of R ranks, and whose tokens travel to them and back.

T tokens a rank, D features, H hidden features of an expert: linear D -> H, ReLU, linear H -> D. Each token goes to
the k experts whose gate scores highest, as in Shazeer et al. (arXiv 1701.06538); the sum of their outputs, weighted
by the gate, comes back. Of the assignments that one rank has for one expert at most ``capacity`` are kept, first
choices before second ones, then in the order of the tokens; the others add nothing (GShard, arXiv 2006.16668,
section 2.2, where a rank is a group).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._functional_collectives import all_to_all_single_autograd

from pytest_gpuperf import Context
from suites.shared.experts import chosen_by
from suites.shared.step import Step, Tensors, gradient_of

LEARNING_RATE = 1.0  # keeps whole numbers whole


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """The weights of the whole layer."""

    gate: torch.Tensor
    """E x D."""
    first: torch.Tensor
    """E x H x D."""
    second: torch.Tensor
    """E x D x H."""

    def on_rank(self, ctx: Context) -> nn.ParameterDict:
        """The rank's own parameters: the gate, which all ranks hold, and the rank's experts.

        Raises:
            ValueError: the experts cannot be split evenly.
        """
        experts = len(self.first)
        if experts % ctx.world_size:
            raise ValueError(f"{experts} experts cannot be split evenly over {ctx.world_size} ranks")
        own = slice(ctx.rank * experts // ctx.world_size, (ctx.rank + 1) * experts // ctx.world_size)
        shards = {"gate": self.gate, "first": self.first[own], "second": self.second[own]}
        return nn.ParameterDict({name: nn.Parameter(value.to(ctx.device).clone()) for name, value in shards.items()})


@dataclass(frozen=True, slots=True)
class Routing:
    """The assignments that a rank keeps, in the order of their experts."""

    token: torch.Tensor
    choice: torch.Tensor
    """0 for a token's first choice, k - 1 for its last."""
    per_expert: torch.Tensor
    """How many each of the E experts has."""


def route(chosen: torch.Tensor, experts: int, capacity: int) -> Routing:
    """Which of the assignments in ``chosen`` (T x k numbers of experts) are kept."""
    tokens, k = chosen.shape
    by_priority = chosen.T.reshape(-1)  # all first choices, then all second ones
    order = by_priority.argsort(stable=True)
    counts = torch.bincount(by_priority, minlength=experts)
    begins = counts.cumsum(0) - counts
    place = torch.arange(tokens * k, device=chosen.device) - begins[by_priority[order]]
    kept = order[place < capacity]
    return Routing(kept % tokens, kept // tokens, counts.clamp(max=capacity))


def experts_forward(parameters: nn.ParameterDict, x: torch.Tensor, per_expert: list[int]) -> torch.Tensor:
    """Each expert on its own rows of x, which are in the order of the experts."""
    parts = x.split(per_expert)
    outputs = [
        nn.functional.linear(nn.functional.linear(part, first).relu(), second)
        for part, first, second in zip(parts, parameters["first"], parameters["second"], strict=True)
    ]
    return torch.cat(outputs)


def dispatched(
    ctx: Context, parameters: nn.ParameterDict, rows: torch.Tensor, per_expert: torch.Tensor
) -> torch.Tensor:
    """What the experts make of the rows, which come in the order of all E experts, and go back in it."""
    local = len(parameters["first"])
    received = torch.empty_like(per_expert)
    dist.all_to_all_single(received, per_expert)
    counts = received.view(ctx.world_size, local)
    # On the host: torch wants to know how much there is to send and to receive.
    sends, receives = per_expert.view(ctx.world_size, local).sum(1).tolist(), counts.sum(1).tolist()
    arrived = all_to_all_single_autograd(rows, receives, sends, ctx.group)
    # They arrive rank by rank, and of each rank expert by expert.
    expert = torch.arange(local, device=rows.device).repeat(ctx.world_size).repeat_interleave(counts.reshape(-1))
    order = expert.argsort(stable=True)
    made = experts_forward(parameters, arrived[order], counts.sum(0).tolist())
    return all_to_all_single_autograd(made[order.argsort()], sends, receives, ctx.group)


Layer = Callable[..., torch.Tensor]
Each = list[tuple[torch.Tensor, torch.Tensor]]
"""For each rank its own tokens, T x D, and the gradient of their outputs."""


def expert_parallel(
    ctx: Context,
    parameters: nn.ParameterDict,
    x: torch.Tensor,
    *,
    k: int,
    capacity: int,
    gate: str,
) -> torch.Tensor:
    """The layer's output for the rank's own tokens.

    Raises:
        ValueError: k is no number of experts, or no token fits.
    """
    weights, chosen = chosen_by(parameters["gate"], x, k=k, capacity=capacity, gate=gate)
    routing = route(chosen, len(parameters["gate"]), capacity)
    returned = dispatched(ctx, parameters, x[routing.token], routing.per_expert)
    weighted = returned * weights[routing.token, routing.choice].unsqueeze(-1)
    return torch.zeros_like(x, dtype=weighted.dtype).index_add(0, routing.token, weighted).to(x.dtype)


def reduce_replicated(ctx: Context, parameters: nn.ParameterDict) -> None:
    """Sums the gradient of the gate, of which each rank has a copy, over the ranks."""
    dist.all_reduce(gradient_of(parameters["gate"]))


def train(
    ctx: Context,
    *,
    weights: Weights,
    each: Each,
    k: int,
    capacity: int,
    gate: str,
    later: Sequence[tuple[Weights, Each]] = (),
    layer: Layer = expert_parallel,
) -> Step[Tensors]:
    """A step of SGD on the sum of the ranks' losses; returns output, gradients and new parameters.

    The update is returned alone: each step begins with weights that are given, so that numbers stay small and whole.

    Args:
        ctx: the rank's context.
        weights: of the whole layer.
        each: for each rank its own tokens, T x D, and the gradient of their outputs. T may differ by rank.
        k: experts that a token goes to.
        capacity: assignments that an expert takes from one rank.
        gate: a key of ``GATES``.
        later: weights and tokens of the steps after the first one, whose routing is another.
        layer: called like ``expert_parallel``.
    """
    parameters = weights.on_rank(ctx)
    coming = itertools.cycle([(weights, each), *later])

    def step() -> Tensors:
        now, of_ranks = next(coming)
        x, grad = (tensor.to(ctx.device) for tensor in of_ranks[ctx.rank])
        x = x.detach().requires_grad_()
        with torch.no_grad():
            for name, value in now.on_rank(ctx).items():
                parameters[name].copy_(value)
        for parameter in parameters.values():
            parameter.grad = None
        output = layer(ctx, parameters, x, k=k, capacity=capacity, gate=gate)
        output.backward(grad)
        reduce_replicated(ctx, parameters)
        results = {"output": output.detach(), "input gradient": gradient_of(x)}
        for name, parameter in parameters.items():
            results[f"{name} gradient"] = gradient_of(parameter)
            results[f"{name} after the step"] = parameter.detach() - LEARNING_RATE * gradient_of(parameter)
        return results

    return step
