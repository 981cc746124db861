"""Operations of a sum, a mean, an extremum or a product that nobody has yet: each rank has a part of it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.distributed.tensor import DTensor, Partial, Replicate, distribute_tensor
from torch.nn import functional

from pytest_gpuperf import Context
from suites.shared.sharding import local_tensor
from suites.shared.step import Tensors
from suites.tensor_parallel.programs.wide_operations import whole

KINDS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sum": lambda parts: parts.sum(0),
    "avg": lambda parts: parts.mean(0),
    "max": lambda parts: parts.amax(0),
    "min": lambda parts: parts.amin(0),
    "product": lambda parts: parts.prod(0),
}
"""What becomes of all parts."""

OPERATIONS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "plus itself": lambda part, all_have: part + part,
    "plus": lambda part, all_have: part + all_have,
    "plus part": lambda part, all_have: torch.add(all_have, part, alpha=-2),
    "plus a number": lambda part, all_have: 3 - part,
    "minus": lambda part, all_have: -part,
    "times": lambda part, all_have: part * all_have,
    "times a negative number": lambda part, all_have: part * -2,
    "times itself": lambda part, all_have: part * part,
    "by": lambda part, all_have: part / all_have,
    "by part": lambda part, all_have: all_have / part,
    "absolute": lambda part, all_have: part.abs(),
    "relu": lambda part, all_have: part.relu(),
    "square": lambda part, all_have: part**2,
    "at least": lambda part, all_have: torch.maximum(part, all_have),
    "at least its rows backwards": lambda part, all_have: torch.maximum(part, part.flip(0)),
    "at most its rows backwards": lambda part, all_have: torch.minimum(part, part.flip(0)),
    "clamp": lambda part, all_have: part.clamp(-1, 4),
    "above": lambda part, all_have: part > 1,
    "where": lambda part, all_have: torch.where(all_have > 0, part, 2.0),
    "where it is positive": lambda part, all_have: torch.where(part > 0, all_have, part),
    "masked": lambda part, all_have: part.masked_fill(all_have > 0, 9.0),
    "sum of rows": lambda part, all_have: part.sum(0),
    "mean of all": lambda part, all_have: part.mean(),
    "maximum of rows": lambda part, all_have: part.amax(0),
    "minimum of all": lambda part, all_have: part.amin(),
    "norm": lambda part, all_have: part.norm(),
    "in another precision": lambda part, all_have: part.float(),
    "in whole numbers": lambda part, all_have: part.long(),
    "in truth values": lambda part, all_have: part.bool(),
    "interpolated": lambda part, all_have: part.lerp(all_have, 0.25),
    "plus a product": lambda part, all_have: torch.addcmul(part, all_have, all_have),
    "plus a product of parts": lambda part, all_have: torch.addcmul(all_have, part, all_have),
    "transpose": lambda part, all_have: part.t(),
    "flat": lambda part, all_have: part.reshape(-1),
    "rows": lambda part, all_have: part[1:3],
    "columns by index": lambda part, all_have: part[:, whole(part, [0, 2])],
    "flip": lambda part, all_have: part.flip(0),
    "padding": lambda part, all_have: functional.pad(part, (1, 1), value=3.0),
    "times a matrix": lambda part, all_have: part @ all_have.t(),
    "products of its own": lambda part, all_have: part @ part.t(),
    "linear": lambda part, all_have: functional.linear(part, all_have, whole(part, [1.0, 2.0, 3.0, 4.0])),
    "rows that are added": lambda part, all_have: all_have.index_add(0, whole(part, [1, 0]), part[:2]),
    "rows that are put": lambda part, all_have: part.index_put((whole(part, [1, 0]),), all_have[:2]),
    "rows that are filled": lambda part, all_have: part.index_fill(0, whole(part, 1), 3.0),
    "embedding": lambda part, all_have: functional.embedding((all_have > 0).long(), part),
    "copy": lambda part, all_have: torch.zeros_like(all_have).copy_(part),
    "copy into part": lambda part, all_have: torch.zeros_like(part).copy_(all_have),
    "ones like it": lambda part, all_have: torch.ones_like(part),
    "of equal size": lambda part, all_have: torch.full_like(part, 2.5) + part.new_ones(4, 3),
    "in place": lambda part, all_have: part.clone().add_(all_have).mul_(2.0),
    "added to what all have": lambda part, all_have: all_have.clone().add_(part),
    "of a list": lambda part, all_have: torch._foreach_add([part, all_have], [all_have, part])[0],
    "joined": lambda part, all_have: torch.cat([part, all_have]),
    "stacked": lambda part, all_have: torch.stack([all_have, part], 1),
}

JOINED = ("joined", "stacked")
"""Which DTensor refuses for products."""


def operations(kind: str) -> tuple[str, ...]:
    """Those that are possible with parts of this kind."""
    return tuple(name for name in OPERATIONS if kind != "product" or name not in JOINED)


def operated(ctx: Context, *, parts: list[torch.Tensor], all_have: torch.Tensor) -> dict[str, Tensors]:
    """The whole results of all operations, by the kind of the parts and by name.

    Args:
        ctx: the rank's context.
        parts: of each rank.
        all_have: the other operand, which is whole on each rank.
    """
    mesh = ctx.mesh((ctx.world_size,))
    own = parts[ctx.rank].to(ctx.device)
    other = distribute_tensor(all_have.to(ctx.device), mesh, [Replicate()], src_data_rank=None)
    found: dict[str, Tensors] = {}
    for kind in KINDS:
        part = DTensor.from_local(own, mesh, [Partial(kind)], run_check=False)
        results = {name: OPERATIONS[name](part, other) for name in operations(kind)}
        found[kind] = {
            name: local_tensor(result.full_tensor()) for name, result in results.items() if isinstance(result, DTensor)
        }
    return found
