"""Mixtures of experts in place of a Llama's feed-forward layers: the axis ``ep`` splits the experts.

The gate is sharded over all ranks, like the dense layers. The ranks along ``shard`` have the same experts, which are
sharded over them. Tokens travel by ``suites.shared.experts``. No token is dropped: how many an
expert drops would depend on the mesh.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard

from suites.hybrid.programs.clipping import local
from suites.shared.experts import chosen_by, expert_exchange
from suites.shared.llama import Config, Llama
from suites.shared.step import Tensors

EXPERTS, CHOICES = 4, 2


def initial_experts(config: Config, dtype: torch.dtype, seed: int) -> Tensors:
    """Weights of all layers' mixtures by name, on the CPU; other numbers than those of the Llama of this seed."""
    generator = torch.Generator().manual_seed(seed ^ 1)

    def drawn(*shape: int) -> torch.Tensor:
        values = torch.randn(shape, dtype=torch.float64, generator=generator) / math.sqrt(shape[-1])
        return values.to(dtype)

    weights: Tensors = {}
    for index in range(config.layers):
        name = f"layers.{index}.feed_forward"
        weights[f"{name}.gate"] = drawn(EXPERTS, config.dim)
        weights[f"{name}.experts.first"] = drawn(EXPERTS, config.hidden, config.dim)
        weights[f"{name}.experts.second"] = drawn(EXPERTS, config.dim, config.hidden)
    return weights


@dataclass(frozen=True, slots=True)
class _Peers:
    """The ranks that share the experts."""

    world_size: int
    group: dist.ProcessGroup
    device: torch.device


class _Experts(nn.Module):
    """The rank's experts; it sends tokens to all of them."""

    def __init__(self, weights: Tensors, mesh: DeviceMesh, device: torch.device) -> None:
        super().__init__()
        self.peers = _Peers(mesh.size(), mesh.get_group(), device)
        self.first, self.second = (
            nn.Parameter(DTensor.from_local(self._own(weights[name], mesh).to(device), mesh, [Shard(0)]))
            for name in ("first", "second")
        )

    @staticmethod
    def _own(whole: torch.Tensor, mesh: DeviceMesh) -> torch.Tensor:
        return whole.chunk(mesh.size())[mesh.get_local_rank()].clone()

    def _mean(self, gradient: torch.Tensor) -> torch.Tensor:
        """The gradient has the tokens of all ranks of ``ep``; FSDP takes the mean over ``shard`` only."""
        return gradient / self.peers.world_size

    # Rows differ in number at each step, and torch would compile anew for them.
    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def forward(self, x: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        held = {"first": local(self.first), "second": local(self.second)}
        for value in held.values():
            if value.requires_grad:
                value.register_hook(self._mean)
        return expert_exchange(self.peers, held, x, weights, chosen, capacity=len(x), padded=False, lanes=[None])


class _Mixture(nn.Module):
    """Sends each token to the experts of its highest scores."""

    def __init__(self, weights: Tensors, name: str, mesh: DeviceMesh, device: torch.device) -> None:
        super().__init__()
        self.gate = nn.Parameter(weights[f"{name}.gate"].to(device))
        own = {part: weights[f"{name}.experts.{part}"] for part in ("first", "second")}
        self.experts = _Experts(own, mesh, device)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = x.flatten(0, 1)
        weights, chosen = chosen_by(self.gate, tokens, k=CHOICES, capacity=len(tokens), gate="softmax")
        output: torch.Tensor = self.experts(tokens, weights, chosen)
        return output.view_as(x)


def place_experts(model: Llama, mesh: DeviceMesh, config: Config, seed: int) -> None:
    """Replaces each layer's feed-forward by a mixture, with the experts of the rank's place on ``ep``.

    Raises:
        ValueError: the mesh has other axes than ``shard`` and ``ep``, or ``ep`` does not divide the experts.
    """
    if mesh.mesh_dim_names != ("shard", "ep") or EXPERTS % mesh["ep"].size():
        degrees = dict(zip(mesh.mesh_dim_names or (), mesh.shape, strict=True))
        raise ValueError(f"experts need a mesh of shard and ep, whose ep divides {EXPERTS}, got {degrees}")
    some = next(model.parameters())
    weights = initial_experts(config, some.dtype, seed)
    for index, layer in model.layers.items():
        layer.feed_forward = _Mixture(weights, f"layers.{index}.feed_forward", mesh["ep"], some.device)


def shard_experts(model: Llama, mesh: DeviceMesh, *, reshard: bool) -> None:
    """Shards each rank's experts over ``shard``, if it has any."""
    for module in model.modules():
        if isinstance(module, _Experts):
            fully_shard(module, mesh=mesh["shard"], reshard_after_forward=reshard)
