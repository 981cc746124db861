"""Faults of the subject overlap."""

from __future__ import annotations

from benchmarks.mutants.fault import Fault

PROGRAMS = "suites.overlap.programs.backward"
UNDER = "suites.overlap.programs.under_products"
WRAPPER = "torch.nn.parallel.distributed"

FAULTS: tuple[Fault, ...] = (
    Fault(
        name="gradients that stay on their rank",
        module=PROGRAMS,
        old="        dist.all_reduce(flat, dist.ReduceOp.AVG)\n",
        new="",
    ),
    Fault(
        name="a sum for the mean",
        module=PROGRAMS,
        old="dist.all_reduce(flat, dist.ReduceOp.AVG)",
        new="dist.all_reduce(flat, dist.ReduceOp.SUM)",
    ),
    Fault(
        name="a mean in float32",
        module=PROGRAMS,
        old="        dist.all_reduce(flat, dist.ReduceOp.AVG)\n",
        new="        low = flat.float()\n        dist.all_reduce(low, dist.ReduceOp.AVG)\n        flat.copy_(low)\n",
    ),
    Fault(
        name="a bucket whose first gradient alone gets the mean",
        module=PROGRAMS,
        old="                part.copy_(averaged.view_as(part))\n",
        new="                part.copy_(averaged.view_as(part) if part is bucket[0] else part)\n",
    ),
    Fault(
        name="the first layer is left out",
        module=PROGRAMS,
        old="    for tensor in reversed(tensors):\n        if room",
        new="    for tensor in reversed(tensors[1:]):\n        if room",
    ),
    Fault(
        name="gradients that add up over the steps",
        module=PROGRAMS,
        old="    module.zero_grad(set_to_none=True)\n",
        new="",
    ),
    Fault(
        name="the first batch at every step",
        module=PROGRAMS,
        old="    return itertools.cycle([problem(ctx, mlp=mlp, turn=turn)[1:] for turn in range(turns)])",
        new="    return itertools.cycle([problem(ctx, mlp=mlp, turn=0)[1:] for turn in range(turns)])",
    ),
    Fault(
        name="one bucket for all layers",
        module=PROGRAMS,
        old="    capacity = int(bucket_mib * MiB)\n",
        new="    capacity = int(BUCKET_MIB * MiB)\n",
    ),
    Fault(
        name="an all_reduce for each layer, whatever the bucket",
        module=PROGRAMS,
        old="        if room <= 0:\n",
        new="        if True:\n",
    ),
    Fault(
        name="DistributedDataParallel that never reduces",
        module=PROGRAMS,
        old="network(weights), bucket_cap_mb=bucket_mib, gradient_as_bucket_view=True, init_sync=False\n    )\n",
        new="network(weights), bucket_cap_mb=bucket_mib, gradient_as_bucket_view=True, init_sync=False\n    )\n"
        "    module.require_backward_grad_sync = False\n",
    ),
    Fault(
        name="DistributedDataParallel of one bucket",
        module=PROGRAMS,
        old="network(weights), bucket_cap_mb=bucket_mib, gradient",
        new="network(weights), gradient",
    ),
    Fault(
        name="ReLU after the last layer too",
        module=PROGRAMS,
        old="        return linear(x, last)\n",
        new="        return relu(linear(x, last))\n",
    ),
    Fault(
        name="the same input on every rank",
        module=PROGRAMS,
        old="    same, own = torch.Generator(ctx.device).manual_seed(mlp.seed), ctx.generator()\n",
        new="    same, own = (torch.Generator(ctx.device).manual_seed(mlp.seed + part) for part in range(2))\n",
    ),
    Fault(
        name="FLOP that count the first layer's input gradient",
        module=PROGRAMS,
        old="(3 * self.layers - 1)",
        new="(3 * self.layers)",
    ),
    Fault(
        name="the mean of a bucket of one gradient stays in a copy",
        module=PROGRAMS,
        old="flat = bucket[0].view(-1) if len(bucket) == 1 else torch.cat([part.view(-1) for part in bucket])",
        new="flat = torch.cat([part.view(-1) for part in bucket])",
    ),
    Fault(
        name="gradients of the last step are added to",
        module=PROGRAMS,
        old="    module.zero_grad(set_to_none=True)\n",
        new="    module.train()\n",
    ),
    Fault(
        name="a bucket closes before a tensor that would overfill it, unlike DistributedDataParallel's",
        module=PROGRAMS,
        old="        if room <= 0:\n",
        new="        if room < tensor.nbytes:\n",
    ),
    Fault(
        name="each rank draws weights of its own; both ways of averaging still agree",
        module=PROGRAMS,
        old="torch.Generator(ctx.device).manual_seed(mlp.seed), ctx.generator()",
        new="torch.Generator(ctx.device).manual_seed(mlp.seed + ctx.rank), ctx.generator()",
    ),
    Fault(
        name="bucket room counted in elements",
        module=PROGRAMS,
        old="        room -= tensor.nbytes",
        new="        room -= tensor.numel()",
    ),
    Fault(
        name="inputs the same on all ranks",
        module=PROGRAMS,
        old="_normal((mlp.rows, mlp.width), mlp.dtype, own) for _ in range(2))",
        new="_normal((mlp.rows, mlp.width), mlp.dtype, same) for _ in range(2))",
    ),
    Fault(
        name="second turn repeats the first",
        module=PROGRAMS,
        old=("    for _ in range(turn + 1):\n        x, grad_output"),
        new=("    for _ in range(turn or 1):\n        x, grad_output"),
    ),
    Fault(
        name="a microbatch's gradients that nobody waits for",
        module=PROGRAMS,
        old="        for _, works in started:\n",
        new="        for _, works in started[:0]:\n",
    ),
    Fault(
        name="the last microbatch is not added",
        module=PROGRAMS,
        old="        for gradients, _ in others:\n",
        new="        for gradients, _ in others[:-1]:\n",
    ),
    Fault(
        name="copies that read a part before its owner has added it up",
        module=UNDER,
        old="        memory.barrier()  # all sums are there\n",
        new="",
    ),
    Fault(
        name="copies that start before all vectors are there",
        module=UNDER,
        old="        memory.barrier()  # all vectors are there, and the last sums have been read\n",
        new="",
    ),
    Fault(
        name="a sum by copies without the rank's own part",
        module=UNDER,
        old="torch.sum(landed, 0, out=own_sum).add_(own)",
        new="torch.sum(landed, 0, out=own_sum)",
    ),
    Fault(
        name="a sum by copies that lands in bfloat16",
        module=UNDER,
        old="landed = torch.empty(len(peers), part, dtype=SUMMED, device=ctx.device)",
        new="landed = torch.empty(len(peers), part, dtype=torch.bfloat16, device=ctx.device)",
    ),
    Fault(
        name="a sum by copies from the next rank alone",
        module=UNDER,
        old="for away in range(1, ctx.world_size)]",
        new="for away in [1] * (ctx.world_size - 1)]",
    ),
    Fault(
        name="a sum on a group of its own, over the sum of the step before",
        module=UNDER,
        old="        out.copy_(mine)\n        dist.all_reduce(out, group=group)\n",
        new="        dist.all_reduce(out, group=group)\n",
    ),
    Fault(
        name="rows that microbatches do not divide are left out",
        module=PROGRAMS,
        old="zip(*(whole.chunk(microbatches) for whole in next(coming)), strict=True)",
        new="zip(*(whole[: len(whole) // microbatches * microbatches].chunk(microbatches) for whole in "
        "next(coming)), strict=True)",
    ),
    Fault(
        name="buckets of megabytes for mebibytes",
        module=PROGRAMS,
        old="capacity = int(bucket_mib * MiB)",
        new="capacity = int(bucket_mib * 1e6)",
    ),
    Fault(
        name="sums of later microbatches that nobody waits for",
        module=PROGRAMS,
        old="        for _, works in started:\n",
        new="        for _, works in started[:1]:\n",
    ),
    Fault(
        name="a capped sum that is the default group's",
        module=UNDER,
        old="dist.all_reduce(out, group=group)",
        new="dist.all_reduce(out)",
    ),
    Fault(
        name="gradients zeroed in place, while an earlier part's are on their way",
        module="suites.overlap.programs.backward",
        old="module.zero_grad(set_to_none=True)",
        new="module.zero_grad(set_to_none=False)",
    ),
    Fault(
        name="communication alone without the last layer's gradients",
        module="suites.overlap.programs.backward",
        old=(
            "for _ in range(mlp.layers)]\n"
            "\n"
            "    def step() -> list[torch.Tensor]:\n"
            "        _average(gradients, bucket_mib)\n"
        ),
        new=(
            "for _ in range(mlp.layers - 1)]\n"
            "\n"
            "    def step() -> list[torch.Tensor]:\n"
            "        _average(gradients, bucket_mib)\n"
        ),
    ),
    Fault(
        name="communication alone of float32, whatever the gradients are",
        module="suites.overlap.programs.backward",
        old="gradients = [_normal((mlp.width, mlp.width), mlp.dtype, own) for _ in range(mlp.layers)]",
        new="gradients = [_normal((mlp.width, mlp.width), torch.float32, own) for _ in range(mlp.layers)]",
    ),
    Fault(
        name="communication alone in buckets of the default size",
        module="suites.overlap.programs.backward",
        old=(
            "    def step() -> list[torch.Tensor]:\n"
            "        _average(gradients, bucket_mib)\n"
            "        return gradients\n"
            "\n"
            "    return step\n"
            "\n"
            "\n"
            "def all_reduce_after_backward("
        ),
        new=(
            "    def step() -> list[torch.Tensor]:\n"
            "        _average(gradients, BUCKET_MIB)\n"
            "        return gradients\n"
            "\n"
            "    return step\n"
            "\n"
            "\n"
            "def all_reduce_after_backward("
        ),
    ),
    Fault(
        name="ways that are searched without their settings",
        module="suites.overlap.programs.backward",
        old="step = WAYS[way](ctx, mlp=mlp, **settings)",
        new="step = WAYS[way](ctx, mlp=mlp)",
    ),
    Fault(
        name="each microbatch waits for its own sums at once",
        module="suites.overlap.programs.backward",
        old="            started.append((gradients, works))\n",
        new=(
            "            started.append((gradients, works))\n"
            "            for work in works:\n"
            "                assert work is not None\n"
            "                work.wait()\n"
        ),
    ),
    Fault(
        name="one product, however many are asked for",
        module="suites.overlap.programs.under_products",
        old="        for _ in range(load.products):\n",
        new="        for _ in range(1):\n",
    ),
    Fault(
        name="gradients that are copied out of their bucket",
        module="suites.overlap.programs.backward",
        old="bucket_cap_mb=bucket_mib, gradient_as_bucket_view=True, init_sync=False",
        new="bucket_cap_mb=bucket_mib, init_sync=False",
    ),
    Fault(
        name="copies that all begin with the first rank",
        module="suites.overlap.programs.under_products",
        old="peers = [(ctx.rank + away) % ctx.world_size for away in range(1, ctx.world_size)]",
        new="peers = [rank for rank in range(ctx.world_size) if rank != ctx.rank]",
    ),
    Fault(
        name="a gradient with a bucket to itself is copied there and back",
        module="suites.overlap.programs.backward",
        old=(
            "        flat = bucket[0].view(-1) if len(bucket) == 1 else torch.cat([part.view(-1) for part in bucket])\n"
            "        dist.all_reduce(flat, dist.ReduceOp.AVG)\n"
            "        if len(bucket) > 1:\n"
        ),
        new=(
            "        flat = torch.cat([part.view(-1) for part in bucket])\n"
            "        dist.all_reduce(flat, dist.ReduceOp.AVG)\n"
            "        if bucket:\n"
        ),
    ),
    Fault(
        name="the barrier before a sum taken once, not in each step",
        module=UNDER,
        old=(
            "    def summed() -> torch.Tensor:\n"
            "        memory.barrier()  # all vectors are there, and the last sums have been read\n"
            "        for here, there in zip(landed, sources, strict=True):\n"
        ),
        new=(
            "    memory.barrier()  # all vectors are there\n"
            "\n"
            "    def summed() -> torch.Tensor:\n"
            "        for here, there in zip(landed, sources, strict=True):\n"
        ),
    ),
    Fault(
        name="torch: a bucket's size cut to whole MiB",
        module=WRAPPER,
        old="        bucket_bytes_cap = int(effective_bucket_cap_mb * _MB_TO_BYTES)\n",
        new="        bucket_bytes_cap = int(effective_bucket_cap_mb) * _MB_TO_BYTES\n",
    ),
    Fault(
        name="copy engines wait for the others' vectors once only",
        module=UNDER,
        old=(
            "    parts = out.view(ctx.world_size, part)\n"
            "\n"
            "    def summed() -> torch.Tensor:\n"
            "        memory.barrier()  # all vectors are there, and the last sums have been read\n"
        ),
        new=(
            "    parts = out.view(ctx.world_size, part)\n"
            "    memory.barrier()  # all vectors are there\n"
            "\n"
            "    def summed() -> torch.Tensor:\n"
        ),
    ),
    Fault(
        name="torchcomms broadcasts from the first rank",
        module="suites.overlap.programs.torchcomms",
        old='communicator.broadcast(held["broadcast"], ROOT, asynchronous)',
        new='communicator.broadcast(held["broadcast"], 0, asynchronous)',
    ),
)
