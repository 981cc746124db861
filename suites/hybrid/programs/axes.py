"""Data parallelism beside one more axis: experts, context or sequence, each on a small layer of whole numbers.

A mesh of ``data`` x ``inner`` ranks, the inner ones next to one another. Every rank has rows of its own: the batch is
split over ``data``, and what it holds of a sequence, or its own tokens, over ``inner``. Which ranks share a parameter,
and so over which its gradient is summed, differs by axis:

expert: each rank has its tokens. A dense matrix is on all ranks; experts are split over ``inner``, with copies over
``data``.
context: ranks hold parts of sequences. All matrices are on all ranks; keys and values are gathered over ``inner``.
sequence: as Megatron's (arXiv 2205.05198). The scale of the norm is on all ranks and sees a part of the tokens; the two
matrices are split over ``inner``, between an all-gather and a reduce-scatter of the tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed._functional_collectives import (
    all_gather_tensor_autograd,
    all_to_all_single_autograd,
    reduce_scatter_tensor_autograd,
    wait_tensor,
)
from torch.distributed.device_mesh import DeviceMesh

from pytest_gpuperf import Context
from suites.shared.step import Tensors

AXES = ("data", "inner")
TOKENS, WIDTH, HIDDEN, EXPERTS = 4, 3, 4, 4
"""Tokens of a rank, features, hidden features, and experts."""


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a rank on the mesh."""

    mesh: DeviceMesh
    data: int
    inner: int
    degree: int
    """The number of ranks along the inner axis."""

    @classmethod
    def of(cls, ctx: Context, degree: int) -> Place:
        """The rank's place on a mesh with so many inner ranks."""
        mesh = ctx.mesh((ctx.world_size // degree, degree), AXES)
        return cls(mesh, mesh.get_local_rank("data"), mesh.get_local_rank("inner"), degree)

    @property
    def within(self) -> dist.ProcessGroup:
        """The ranks of the inner axis."""
        return self.mesh.get_group("inner")

    @property
    def copies(self) -> dist.ProcessGroup:
        """The ranks that hold the same part of what the inner axis splits."""
        return self.mesh.get_group("data")


def part(place: Place, tensor: torch.Tensor, dim: int = 0) -> torch.Tensor:
    """The inner rank's share of a tensor."""
    return tensor.chunk(place.degree, dim)[place.inner]


def expert(place: Place, held: Tensors, x: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    """Tokens go to the expert that they have chosen, and back."""
    dense = x @ held["dense"].T
    order = chosen.argsort(stable=True)
    local = EXPERTS // place.degree
    counts = torch.bincount(chosen, minlength=EXPERTS)
    received = torch.empty_like(counts)
    dist.all_to_all_single(received, counts, group=place.within)
    sends, receives = (of.view(place.degree, local).sum(1).tolist() for of in (counts, received))
    arrived = wait_tensor(all_to_all_single_autograd(dense[order], receives, sends, place.within))
    number = torch.arange(local, device=x.device).repeat(place.degree).repeat_interleave(received)
    made = torch.einsum("td,thd->th", arrived, held["experts"][number])
    back: torch.Tensor = wait_tensor(all_to_all_single_autograd(made, sends, receives, place.within))
    return back[order.argsort()]


def context(place: Place, held: Tensors, x: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    """Causal attention without a softmax, which would leave no number whole."""
    query, key, value = (x @ held[name].T for name in ("query", "key", "value"))
    keys, values = (wait_tensor(all_gather_tensor_autograd(own, 0, place.within)) for own in (key, value))
    mine = torch.arange(len(x), device=x.device) + place.inner * len(x)
    seen = mine[:, None] >= torch.arange(len(keys), device=x.device)
    attended: torch.Tensor = (query @ keys.T * seen) @ values
    return attended


def sequence(place: Place, held: Tensors, x: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    """A scale on the rank's tokens, and a split MLP on all of them."""
    scaled = x * held["scale"]
    whole = wait_tensor(all_gather_tensor_autograd(scaled, 0, place.within))
    hidden = (whole @ held["up"].T).relu()
    part_of_all = hidden @ held["down"].T
    mine: torch.Tensor = wait_tensor(reduce_scatter_tensor_autograd(part_of_all, "sum", 0, place.within))
    return mine


Layer = Callable[[Place, Tensors, torch.Tensor, torch.Tensor], torch.Tensor]
LAYERS: Mapping[str, Layer] = {"expert": expert, "context": context, "sequence": sequence}
SPLIT: Mapping[str, Mapping[str, int]] = {"expert": {"experts": 0}, "context": {}, "sequence": {"up": 0, "down": 1}}
"""Parameters that the inner axis splits, and along which dimension."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """What all ranks have in a step, rank by rank."""

    x: list[torch.Tensor]
    """T x D each."""
    chosen: list[torch.Tensor]
    """The expert of each token."""
    grad: list[torch.Tensor]
    """The gradients of the outputs."""


def train(ctx: Context, *, axis: str, degree: int, weights: Tensors, batches: list[Tokens]) -> list[Tensors]:
    """Steps that move each parameter by the sign of its gradient, so that whole numbers stay small.

    Returns:
        For each step the rank's output, the gradient of its tokens, and of each of its parameters the gradient and
        what it is then.
    """
    place, split = Place.of(ctx, degree), SPLIT[axis]
    held = {
        name: (part(place, value, split[name]) if name in split else value).to(ctx.device).clone()
        for name, value in weights.items()
    }
    told = []
    for batch in batches:
        x, chosen, grad = (of[ctx.rank].to(ctx.device) for of in (batch.x, batch.chosen, batch.grad))
        leaves = {name: value.detach().requires_grad_() for name, value in held.items()}
        tokens = x.clone().requires_grad_()
        output = LAYERS[axis](place, leaves, tokens, chosen)
        output.backward(grad)
        assert tokens.grad is not None
        results = {"output": output.detach(), "input gradient": tokens.grad}
        for name, leaf in leaves.items():
            assert leaf.grad is not None, f"{name} has no gradient"
            # Over the ranks that have used the same numbers with other tokens.
            total = leaf.grad.contiguous()
            dist.all_reduce(total, group=place.copies if name in split else ctx.group)
            held[name] = leaf.detach() - total.sign()
            results |= {f"{name} gradient": total, name: held[name]}
        told.append(results)
    return told
