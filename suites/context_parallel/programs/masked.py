"""Attention with a mask of one's own, whose module torch's ``_ContextParallel`` gives the keys of all ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.parallel import parallelize_module
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, create_mask

from pytest_gpuperf import Context
from suites.shared.step import Tensors

Balancer = Literal["none", "head and tail", "documents", "blocks"]
BLOCK = 16
"""Tokens, of the mask whose blocks are shared out by their work."""


class Masked(nn.Module):
    """Attention from its definition, called as ``flex_attention`` is; that one has no gradients on CPUs."""

    def forward(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, block_mask: BlockMask
    ) -> torch.Tensor:
        """The output of the queries."""
        batch, heads, tokens, _ = query.shape
        seen = create_mask(block_mask.mask_mod, batch, heads, tokens, key.shape[2], device=query.device.type)
        scores = query @ key.mT / query.shape[-1] ** 0.5
        output: torch.Tensor = scores.masked_fill(~seen, -torch.inf).softmax(-1) @ value
        return output


def attended(
    ctx: Context,
    *,
    balancer: Balancer,
    lengths: list[list[int]],
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    grad: torch.Tensor,
) -> Tensors:
    """The rank's output and gradients, the tokens that it has, and the whole output brought together.

    Args:
        ctx: the rank's context.
        balancer: what shares out the tokens.
        lengths: of each sequence's documents; tokens see those of their document up to themselves.
        query: of the whole sequence, as are the following.
        key: see above.
        value: see above.
        grad: the gradient of the output.
    """
    # Here, since this module travels to the ranks by value, and torch's options with it.
    from torch.distributed.tensor.experimental import _attention as exported
    from torch.distributed.tensor.experimental._context_parallel import _load_balancer as balancers

    mesh, device = ctx.mesh((ctx.world_size,)), ctx.device
    tokens = query.shape[2]
    document = torch.stack([torch.arange(len(one)).repeat_interleave(torch.tensor(one)) for one in lengths]).to(device)

    def seen(b: torch.Tensor, h: torch.Tensor, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return (q >= k) & (document[b, q] == document[b, k])

    def mask(block: int) -> BlockMask:
        return create_block_mask(seen, len(query), 1, tokens, tokens, device=device.type, BLOCK_SIZE=block)

    makers: dict[str, Callable[[], Any]] = {
        "none": lambda: None,
        "head and tail": lambda: balancers._HeadTailLoadBalancer(tokens, ctx.world_size, device),
        "documents": lambda: exported._PerDocumentHeadTailLoadBalancer(lengths, ctx.world_size, device),
        "blocks": lambda: exported._PTRRLoadBalancer(mask(BLOCK), ctx.world_size),
    }
    whole = {"query": query, "key": key, "value": value, "grad": grad}
    return _shared_out(mesh, makers[balancer](), mask(128), {name: one.to(device) for name, one in whole.items()})


def attended_by_heads(ctx: Context, *, balanced: bool, reach: list[int], replicas: int, **whole: Any) -> Tensors:
    """Attends with a mask for each head, which all sequences share; groups of ranks have sequences of their own.

    Args:
        ctx: the rank's context.
        balanced: whether the ranks of a group have heads and tails.
        reach: how many keys each head's queries see at most, up to themselves.
        replicas: how many groups there are.
        whole: query, key, value and grad of all sequences.
    """
    # Here, since this module travels to the ranks by value, and torch's options with it.
    from torch.distributed.tensor.experimental._context_parallel import _load_balancer as balancers

    mesh = ctx.mesh((replicas, ctx.world_size // replicas), ("replica", "sequence"))
    mine = {name: one.chunk(replicas)[mesh.get_local_rank("replica")].to(ctx.device) for name, one in whole.items()}
    tokens, reaching = mine["query"].shape[2], torch.tensor(reach, device=ctx.device)

    def seen(b: torch.Tensor, h: torch.Tensor, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return (q >= k) & (q - k < reaching[h])

    mask = create_block_mask(seen, None, len(reach), tokens, tokens, device=ctx.device.type)
    chosen = balancers._HeadTailLoadBalancer(tokens, mesh.size(1), ctx.device) if balanced else None
    return _shared_out(mesh["sequence"], chosen, mask, mine)


def _shared_out(mesh: DeviceMesh, balancer: Any, mask: BlockMask, tensors: Tensors) -> Tensors:
    from torch.distributed.tensor.experimental import _attention as exported
    from torch.distributed.tensor.experimental._context_parallel import _attention as torchs

    style = torchs._ContextParallel(seq_dim=2, attention_type=torchs._ContextParallel.AttentionType.FLEX)
    module = parallelize_module(Masked(), mesh, style)
    before = torchs._dispatch_mode, torchs._cp_options.enable_load_balance, torchs._compiled_create_block_mask
    setattr(torchs, "_compiled_create_block_mask", create_block_mask)  # noqa: B010  # as without a compiler
    try:
        batch, _, tokens, _ = tensors["query"].shape
        place = torch.arange(tokens, device=mesh.device_type).expand(batch, tokens).clone()
        whole: Any = tensors | {"place": place, "mask": mask}
        dims = {**dict.fromkeys(tensors, 2), "place": 1, "mask": 2}
        mine: Any = exported._context_parallel_shard(mesh, whole, dims, balancer)
        leaves = [mine[name].detach().requires_grad_() for name in ("query", "key", "value")]
        output = module(leaves[0], leaves[1], value=leaves[2], block_mask=mine["mask"])
        gradients = torch.autograd.grad(output, leaves, mine["grad"])
        (joined,) = exported.context_parallel_unshard(mesh, [output.detach()], [2], balancer)
    finally:
        torchs._dispatch_mode, torchs._cp_options.enable_load_balance, torchs._compiled_create_block_mask = before
    names = ("query gradient", "key gradient", "value gradient")
    return {
        "place": mine["place"],
        "blocks": mine["mask"].to_dense(),
        "output": output.detach(),
        **dict(zip(names, gradients, strict=True)),
        "together": joined,
    }
