"""When the parameters of a root and of its layer are whole: after forward and after backward, by FSDP2's settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

from pytest_gpuperf import Context


class ScaledLayer(nn.Module):
    """A root with a parameter of its own, and a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The layer's output, scaled."""
        scaled: torch.Tensor = self.layer(x) * self.scale
        return scaled


def _as_it_is(root: FSDPModule, layer: FSDPModule) -> None:
    pass


SETTINGS: Mapping[str, tuple[bool | int | None, Callable[[FSDPModule, FSDPModule], None]]] = {
    "default": (None, _as_it_is),
    "all resharded": (True, _as_it_is),
    "none resharded": (False, _as_it_is),
    "root resharded": (None, lambda root, layer: root.set_reshard_after_forward(True, recurse=False)),
    "all resharded, set later": (False, lambda root, layer: root.set_reshard_after_forward(True)),
    "none resharded, set later": (True, lambda root, layer: root.set_reshard_after_forward(False)),
    "over one rank": (1, _as_it_is),
    "over both ranks": (2, _as_it_is),
    "layer resharded": (False, lambda root, layer: layer.set_reshard_after_forward(True)),
}
"""What ``fully_shard`` is given as ``reshard_after_forward``, and what is set afterwards."""


def whole(ctx: Context, *, setting: str) -> dict[str, bool]:
    """Whether the root's parameter and the layer's weight are whole after forward, and after backward."""
    given, change = SETTINGS[setting]
    network = ScaledLayer().to(ctx.device)
    mesh = ctx.mesh((ctx.world_size,))
    for unit in (network.layer, network):
        fully_shard(unit, mesh=mesh, reshard_after_forward=given)
    assert isinstance(network, FSDPModule)
    assert isinstance(network.layer, FSDPModule)
    change(network, network.layer)
    found: dict[str, bool] = {}
    output = network(torch.ones(2, 4, device=ctx.device))
    for moment in ("forward", "backward"):
        if moment == "backward":
            output.sum().backward()
        held = {"root": network.scale, "layer": network.layer.weight}
        found |= {f"{name} after {moment}": not isinstance(value, DTensor) for name, value in held.items()}
    return found
