"""Faults of the subject stragglers."""

from __future__ import annotations

from benchmarks.mutants.fault import Fault

LATE, SHARED, LINK = (f"suites.stragglers.programs.{name}" for name in ("late", "shared_device", "slow_link"))

FAULTS: tuple[Fault, ...] = (
    Fault(
        name="the rank after the late one is delayed",
        module=LATE,
        old="if ctx.rank == late else None",
        new="if late is not None and ctx.rank == (late + 1) % ctx.world_size else None",
    ),
    Fault(
        name="every rank is delayed",
        module=LATE,
        old="if ctx.rank == late else None",
        new="if late is not None else None",
    ),
    Fault(
        name="the delay is taken for milliseconds",
        module="suites.shared.delay",
        old="            time.sleep(self.seconds)\n",
        new="            time.sleep(self.seconds / 1000)\n",
    ),
    Fault(
        name="work that waits for the other ranks",
        module=LATE,
        old="        return x @ x\n",
        new="        ctx.barrier()\n        return x @ x\n",
    ),
    Fault(
        name="a sum that nobody waits for",
        module=LATE,
        old="        dist.all_reduce(product)\n        return product\n",
        new="        total = product.clone()\n        dist.all_reduce(total, async_op=True)\n        return product\n",
    ),
    Fault(
        name="a sum in bfloat16",
        module=LATE,
        old="        dist.all_reduce(product)\n",
        new="        half = product.bfloat16()\n        dist.all_reduce(half)\n        product.copy_(half)\n",
    ),
    Fault(
        name="the rank after the one that shares its device gets the neighbour",
        module=SHARED,
        old="if ctx.rank == shared else None",
        new="if shared is not None and ctx.rank == (shared + 1) % ctx.world_size else None",
    ),
    Fault(
        name="every rank shares its device",
        module=SHARED,
        old="if ctx.rank == shared else None",
        new="if shared is not None else None",
    ),
    Fault(
        name="a neighbour that computes a single product",
        module=SHARED,
        old="        for _ in range(self._products):\n            torch.mm(self._x",
        new="        for _ in range(1):\n            torch.mm(self._x",
    ),
    Fault(
        name="products that wait for the other ranks",
        module=SHARED,
        old="        for _ in range(own):\n",
        new="        ctx.barrier()\n        for _ in range(own):\n",
    ),
    Fault(
        name="a neighbour that computes into the rank's own square",
        module=SHARED,
        old="        if neighbour is not None:\n            neighbour.end()\n        return square\n",
        new="        if neighbour is not None:\n            square.copy_(neighbour._square)\n        return square\n",
    ),
    Fault(
        name="a sum of squares without who shares its device",
        module=SHARED,
        old="        square = compute()\n        dist.all_reduce(square)\n",
        new="        square = compute()\n        if ctx.rank == shared:\n            square.zero_()\n"
        "        dist.all_reduce(square)\n",
    ),
    Fault(
        name="a sum of squares that nobody waits for",
        module=SHARED,
        old="        dist.all_reduce(square)\n",
        new="        dist.all_reduce(square.clone(), async_op=True)\n",
    ),
    Fault(
        name="messages of a pair that are the rank's own",
        module=LINK,
        old="        return received\n",
        new="        return received.copy_(sent)\n",
    ),
    Fault(
        name="messages of a pair that end at 64 KiB",
        module=LINK,
        old="    received.zero_()\n",
        new="    received.zero_()\n    whole, sent, received = received, sent[:65_536], received[:65_536]\n",
    ),
    Fault(
        name="messages that every rank sends around the ring, whichever pair is asked for",
        module=LINK,
        old="    other = pair[1 - pair.index(ctx.rank)]\n",
        new="    other = (min(pair), max(pair))[ctx.rank == min(pair)] if ctx.rank else ctx.world_size - 1\n",
    ),
    Fault(
        name="a sum among some that all take part in",
        module=LINK,
        old="    group = ctx.group if len(among) == ctx.world_size else dist.new_group(list(among))\n",
        new="    group, among = ctx.group, list(range(ctx.world_size))\n",
    ),
    Fault(
        name="a rank that is named by its slowest link, which its neighbours share",
        module=LINK,
        old="key=lambda rank: min(taken for pair",
        new="key=lambda rank: max(taken for pair",
    ),
    Fault(
        name="a ring whose last rank has no link to the first",
        module=LINK,
        old="for rank in range(world_size)]",
        new="for rank in range(world_size - 1)]",
    ),
    Fault(
        name="a rank that NCCL need not reach by sockets",
        module=LINK,
        old="is not (APART in pair))",
        new="and APART not in pair)",
    ),
    Fault(
        name="a late rank 0 that counts as none",
        module=LATE,
        old="Delay(ctx, delay) if ctx.rank == late else None",
        new="Delay(ctx, delay) if late and ctx.rank == late else None",
    ),
    Fault(
        name="the rank whose links take longest together",
        module="suites.stragglers.programs.slow_link",
        old="key=lambda rank: min(taken for pair, taken in seconds.items() if rank in pair))",
        new="key=lambda rank: sum(taken for pair, taken in seconds.items() if rank in pair))",
    ),
    Fault(
        name="matrices that are alike on all ranks",
        module="suites.stragglers.programs.late",
        old="torch.Generator().manual_seed(rank)",
        new="torch.Generator().manual_seed(1)",
    ),
    Fault(
        name="what the late rank takes for what it takes longer",
        module="suites.stragglers.reference",
        old="slower = own[rank] - min(own)",
        new="slower = own[rank]",
    ),
    Fault(
        name="what all pay as a share of the whole step",
        module="suites.stragglers.reference",
        old="slower / 100) / slower if",
        new="slower / 100) / held_up.median if",
    ),
    Fault(
        name="a rank's mean, which one hiccup drags up",
        module="suites.stragglers.reference",
        old="statistics.median(samples.seconds)",
        new="statistics.fmean(samples.seconds)",
    ),
    Fault(
        name="a step's seconds from before all ranks are there",
        module="suites.shared.step_seconds",
        old="        ctx.barrier()\n",
        new="",
    ),
    Fault(
        name="a neighbour that computes as much as the rank itself",
        module="suites.stragglers.programs.shared_device",
        old="    neighbour = Neighbour(ctx, width, beside) if ctx.rank == shared else None\n",
        new="    neighbour = Neighbour(ctx, width, own) if ctx.rank == shared else None\n",
    ),
    Fault(
        name="a late rank that sends first and is late afterwards",
        module="suites.stragglers.programs.slow_link",
        old=(
            "        if wait is not None:\n"
            "            wait()\n"
            "        for work in dist.batch_isend_irecv(\n"
            "            [dist.P2POp(dist.isend, sent, other), dist.P2POp(dist.irecv, received, other)]\n"
            "        ):\n"
            "            work.wait()\n"
        ),
        new=(
            "        for work in dist.batch_isend_irecv(\n"
            "            [dist.P2POp(dist.isend, sent, other), dist.P2POp(dist.irecv, received, other)]\n"
            "        ):\n"
            "            work.wait()\n"
            "        if wait is not None:\n"
            "            wait()\n"
        ),
    ),
    Fault(
        name="addends of some ranks by their number among all",
        module="suites.stragglers.programs.slow_link",
        old="rank=place, ranks=len(among)",
        new="rank=ctx.rank, ranks=len(among)",
    ),
    Fault(
        name="the neighbour computes as much as the rank",
        module="suites.stragglers.programs.shared_device",
        old="Neighbour(ctx, width, beside)",
        new="Neighbour(ctx, width, own)",
    ),
)
