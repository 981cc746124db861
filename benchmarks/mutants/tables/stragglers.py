"""Faults of the subject stragglers."""

from __future__ import annotations

from benchmarks.mutants.fault import Fault

PROGRAMS = "suites.stragglers.programs"

FAULTS: tuple[Fault, ...] = (
    Fault(
        name="the rank after the late one is delayed",
        module=PROGRAMS,
        old="if ctx.rank == late else None",
        new="if late is not None and ctx.rank == (late + 1) % ctx.world_size else None",
    ),
    Fault(
        name="every rank is delayed",
        module=PROGRAMS,
        old="if ctx.rank == late else None",
        new="if late is not None else None",
    ),
    Fault(
        name="the delay is taken for milliseconds",
        module=PROGRAMS,
        old="            time.sleep(self._seconds)\n",
        new="            time.sleep(self._seconds / 1000)\n",
    ),
    Fault(
        name="work that waits for the other ranks",
        module=PROGRAMS,
        old="        return x @ x\n",
        new="        ctx.barrier()\n        return x @ x\n",
    ),
    Fault(
        name="a sum that nobody waits for",
        module=PROGRAMS,
        old="        dist.all_reduce(product)\n        return product\n",
        new="        total = product.clone()\n        dist.all_reduce(total, async_op=True)\n        return product\n",
    ),
    Fault(
        name="a sum in bfloat16",
        module=PROGRAMS,
        old="        dist.all_reduce(product)\n",
        new="        half = product.bfloat16()\n        dist.all_reduce(half)\n        product.copy_(half)\n",
    ),
    Fault(
        name="a late rank 0 that counts as none",
        module=PROGRAMS,
        old="_Delay(ctx, delay) if ctx.rank == late else None",
        new="_Delay(ctx, delay) if late and ctx.rank == late else None",
    ),
)
