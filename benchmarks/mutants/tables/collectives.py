"""Faults of the subject collectives."""

from __future__ import annotations

from benchmarks.mutants.fault import Fault

FAULTS: tuple[Fault, ...] = (
    Fault(
        name="an all_reduce that goes through bfloat16",
        module="torch.distributed.distributed_c10d",
        old="""    _check_single_tensor(tensor, "tensor")
    if _rank_not_in_group(group):
        _warn_not_in_group("all_reduce")
        return
""",
        new="    if tensor.is_floating_point():\n        tensor.copy_(tensor.bfloat16())\n",
    ),
    Fault(
        name="a ring that sends to the rank before",
        module="suites.collectives.programs.plain",
        old="(ctx.rank + 1) % ctx.world_size, (ctx.rank - 1) % ctx.world_size",
        new="(ctx.rank - 1) % ctx.world_size, (ctx.rank + 1) % ctx.world_size",
    ),
    Fault(
        name="a ring that sends its own to itself",
        module="suites.collectives.programs.plain",
        old="for work in works:\n            work.wait()\n        return out",
        new="for work in works:\n            work.wait()\n        return x",
    ),
)
