"""Faults of the subject zero_infinity."""

from __future__ import annotations

from benchmarks.mutants.fault import Fault

PROGRAMS = "suites.zero_infinity.programs.offloading"
RACING = "suites.zero_infinity.programs.racing"

FAULTS: tuple[Fault, ...] = (
    Fault(
        name="a sum of gradients for their mean",
        module=PROGRAMS,
        old="return mine.div_(ctx.world_size).cpu()",
        new="return mine.cpu()",
    ),
    Fault(
        name="another rank's slice of the gradient",
        module=PROGRAMS,
        old="    padded[: gradient.numel()] = gradient.flatten()\n",
        new="    padded[: gradient.numel()] = gradient.flatten()\n    padded = padded.roll(size)\n",
    ),
    Fault(
        name="gradients that are reduced in float32",
        module=PROGRAMS,
        old="    dist.reduce_scatter_tensor(mine, padded)\n",
        new="    low = mine.float()\n    dist.reduce_scatter_tensor(low, padded.float())\n    mine.copy_(low)\n",
    ),
    Fault(
        name="gradients that are reduced in bfloat16",
        module=PROGRAMS,
        old="    dist.reduce_scatter_tensor(mine, padded)\n",
        new="    low = mine.bfloat16()\n    dist.reduce_scatter_tensor(low, padded.bfloat16())\n    mine.copy_(low)\n",
    ),
    Fault(
        name="gradients that leave out the last rank's",
        module=PROGRAMS,
        old="    dist.reduce_scatter_tensor(mine, padded)\n",
        new="    dist.reduce_scatter_tensor(mine, padded * (ctx.rank + 1 < ctx.world_size))\n",
    ),
    Fault(
        name="files that are read and never written",
        module=PROGRAMS,
        old="return torch.from_file(str(folder / name), shared=True, size=numel, dtype=dtype)",
        new="torch.from_file(str(folder / name), shared=True, size=numel, dtype=dtype)\n"
        "        return torch.from_file(str(folder / name), shared=False, size=numel, dtype=dtype)",
    ),
    Fault(
        name="an optimizer that keeps its state in memory",
        module=PROGRAMS,
        old="update.state[shard.values] = dict(shard.state)",
        new="update.state[shard.values] = {key: value.clone() for key, value in shard.state.items()}",
    ),
    Fault(
        name="moments that are swapped when the state is made",
        module=PROGRAMS,
        old="update.state[shard.values] = dict(shard.state)",
        new="update.state[shard.values] = dict(zip(shard.state, [*list(shard.state.values())[:2][::-1], "
        "*list(shard.state.values())[2:]]))",
    ),
    Fault(
        name="state of each parameter in one file",
        module=PROGRAMS,
        old='state = {key: home(f"{name}.{key}", size, value.dtype) for',
        new='state = {key: home(f"{key}", size, value.dtype) for',
    ),
    Fault(
        name="a count of steps that begins anew when training is resumed",
        module=PROGRAMS,
        old='state[COUNT] = home(f"{name}.{COUNT}", 1, COUNT_DTYPE).view(())',
        new='state[COUNT] = home(f"{name}.{COUNT}", 1, COUNT_DTYPE).view(()).zero_()',
    ),
    Fault(
        name="momenta that begin anew when training is resumed",
        module=PROGRAMS,
        old='state = {key: home(f"{name}.{key}", size, value.dtype) for',
        new='state = {key: home(f"{name}.{key}", size, value.dtype).zero_() for',
    ),
    Fault(
        name="training that is resumed with the first batch",
        module=PROGRAMS,
        old="batches_on_device(ctx, problem))), done, None)",
        new="batches_on_device(ctx, problem))), 0, None)",
    ),
    Fault(
        name="the first batch at every step",
        module=PROGRAMS,
        old="itertools.cycle(batches_on_device(ctx, problem))",
        new="itertools.cycle(batches_on_device(ctx, problem)[:1])",
    ),
    Fault(
        name="parameters that are gathered at the first step alone",
        module=PROGRAMS,
        old="    def step() -> Tensors:\n        number, batch",
        new="    first = {name: gather(ctx, shard).requires_grad_() for name, shard in owned.items()}\n"
        "    gather = lambda ctx, shard: next(first[name] for name, each in owned.items() if each is shard)\n\n"
        "    def step() -> Tensors:\n        number, batch",
    ),
    Fault(
        name="parameters that are gathered in bfloat16",
        module=PROGRAMS,
        old="local = shard.values.to(ctx.device)",
        new="local = shard.values.to(ctx.device).bfloat16().to(shard.values.dtype)",
    ),
    Fault(
        name="a slice that is rounded down, and the tail lost",
        module=PROGRAMS,
        old="        values[: mine.numel()] = mine\n",
        new="        values[: value.numel() // ctx.world_size] = mine[: value.numel() // ctx.world_size]\n",
    ),
    Fault(
        name="biases that are not updated",
        module=PROGRAMS,
        old="update = optimizer(problem, [shard.values for shard in owned.values()])",
        new='update = optimizer(problem, [shard.values for name, shard in owned.items() if "bias" not in name])',
    ),
    Fault(
        name="whole parameters that are kept on the device",
        module=PROGRAMS,
        old="    return whole[: math.prod(shard.whole)].view(shard.whole)\n",
        new="    KEPT.append(whole.clone())\n    return whole[: math.prod(shard.whole)].view(shard.whole)\n\n\n"
        "KEPT = []\n",
    ),
    Fault(
        name="memory for two whole parameters until the step has ended",
        module=PROGRAMS,
        old="    return whole[: math.prod(shard.whole)].view(shard.whole)\n",
        new="    return torch.stack([whole, whole])[0][: math.prod(shard.whole)].view(shard.whole)\n",
    ),
    Fault(
        name="gradients that stay until the next step",
        module=PROGRAMS,
        old="        update.zero_grad()\n",
        new="",
    ),
    Fault(
        name="files that a run which fails leaves behind",
        module=PROGRAMS,
        old="    finally:\n        for path in own.iterdir():",
        new="    except KeyError:\n        for path in own.iterdir():",
    ),
    Fault(
        name="an optimizer whose second moment forgets as fast as its first",
        module="torch.optim.adam",
        old="exp_avg_sq.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)",
        new="exp_avg_sq.mul_(beta1).addcmul_(grad, grad, value=1 - beta1)",
    ),
    Fault(
        name="training that goes on begins with the first batch again",
        module="suites.zero_infinity.programs.offloading",
        old="itertools.islice(enumerate(itertools.cycle(batches_on_device(ctx, problem))), done, None)",
        new="enumerate(itertools.cycle(batches_on_device(ctx, problem)))",
    ),
    Fault(
        name="Adam's count of steps lives in memory, and begins anew after a stop",
        module="suites.zero_infinity.programs.offloading",
        old='state[COUNT] = home(f"{name}.{COUNT}", 1, COUNT_DTYPE).view(())',
        new="state[COUNT] = torch.zeros((), dtype=COUNT_DTYPE)",
    ),
    Fault(
        name="Adam adds eps inside the root",
        module="torch.optim.adam",
        old="denom = (exp_avg_sq.sqrt() / bias_correction2_sqrt).add_(eps)",
        new="denom = (exp_avg_sq / bias_correction2).add_(eps).sqrt_()",
    ),
    Fault(
        name="Adam's count of steps is a copy that never reaches its file",
        module="suites.zero_infinity.programs.offloading",
        old='home(f"{name}.{COUNT}", 1, COUNT_DTYPE).view(())',
        new='home(f"{name}.{COUNT}", 1, COUNT_DTYPE).view(()).clone()',
    ),
    Fault(
        name="gradients stay in the host's memory from step to step",
        module="suites.zero_infinity.programs.offloading",
        old=("        update.step()\n        update.zero_grad()\n"),
        new="        update.step()\n",
    ),
    Fault(
        name="gradients zeroed but kept",
        module="suites.zero_infinity.programs.offloading",
        old="        update.zero_grad()\n",
        new="        update.zero_grad(set_to_none=False)\n",
    ),
    # What is raced.
    Fault(
        name="raced files that are the host's memory",
        module=RACING,
        old="        mapped = disk(folder)(file, numel, dtype)\n        (folder / file).unlink()\n",
        new="        mapped = torch.zeros(numel, dtype=dtype)\n",
    ),
    Fault(
        name="raced files that keep their names",
        module=RACING,
        old="        (folder / file).unlink()\n",
        new="",
    ),
    Fault(
        name="a raced optimizer whose moments are in memory",
        module=RACING,
        old="            self._optimizer.state[share.values] = dict(share.state)\n",
        new="            pass\n",
    ),
    Fault(
        name="a raced optimizer that updates copies",
        module=RACING,
        old="AdamW([share.values for share in self.shares], lr",
        new="AdamW([share.values.clone() for share in self.shares], lr",
    ),
    Fault(
        name="raced gradients that are sums over the ranks",
        module=RACING,
        old="mine.to(MASTER).div_(ctx.world_size)",
        new="mine.to(MASTER)",
    ),
    Fault(
        name="a mean that is taken in the dtype of computation",
        module=RACING,
        old="mine.to(MASTER).div_(ctx.world_size)",
        new="mine.div_(ctx.world_size).to(MASTER)",
    ),
    Fault(
        name="a buffer for all parameters of a size",
        module=PROGRAMS,
        old="    whole = torch.empty(local.numel() * ctx.world_size, dtype=local.dtype, device=ctx.device)\n"
        "    dist.all_gather_into_tensor(whole, local)\n"
        "    return whole[: math.prod(shard.whole)].view(shard.whole)",
        new="    whole = _GATHERED.setdefault(\n        local.numel() * ctx.world_size,\n"
        "        torch.empty(local.numel() * ctx.world_size, dtype=local.dtype, device=ctx.device),\n"
        "    )\n    dist.all_gather_into_tensor(whole, local)\n"
        "    return whole[: math.prod(shard.whole)].view(shard.whole)\n\n\n"
        "_GATHERED: dict[int, torch.Tensor] = {}",
    ),
    Fault(
        name="timed gradients that add up at home",
        module=RACING,
        old="self.values.grad.copy_(exact, non_blocking=True)",
        new="self.values.grad.add_(exact.to(self.values.device))",
    ),
    Fault(
        name="a raced loss in the dtype of computation",
        module=RACING,
        old="functional.mse_loss(x.to(MASTER), target.to(MASTER))",
        new="functional.mse_loss(x, target)",
    ),
    Fault(
        name="blocks that all begin with the same values",
        module="suites.zero_infinity.programs.racing",
        old="generator = torch.Generator(device).manual_seed(self.seed + index)",
        new="generator = torch.Generator(device).manual_seed(self.seed)",
    ),
    Fault(
        name="a learning rate that is set a step late",
        module="suites.zero_infinity.programs.offloading",
        old="""        set_rate(update, problem.rate(number))
        update.step()""",
        new="""        update.step()
        set_rate(update, problem.rate(number))""",
    ),
    Fault(
        name="Adam adds epsilon before it corrects the bias",
        module="torch.optim.adam",
        old="denom = (exp_avg_sq.sqrt() / bias_correction2_sqrt).add_(eps)",
        new="denom = exp_avg_sq.sqrt().add_(eps) / bias_correction2_sqrt",
    ),
    Fault(
        name="raced moments in the dtype of computation",
        module="suites.zero_infinity.programs.racing",
        old='home(f"{index}.{name}", size, MASTER) for name',
        new='home(f"{index}.{name}", size, work.compute) for name',
    ),
    Fault(
        name="raced values in the dtype of computation",
        module="suites.zero_infinity.programs.racing",
        old='self.values = home(f"{index}.values", size, MASTER)',
        new='self.values = home(f"{index}.values", size, work.compute)',
    ),
    Fault(
        name="raced values that computation has rounded before the first step",
        module="suites.zero_infinity.programs.racing",
        old="self.values[: len(mine)].copy_(mine)",
        new="self.values[: len(mine)].copy_(mine.to(work.compute))",
    ),
    Fault(
        name="each rank looks at its own disk alone",
        module="suites.zero_infinity.programs.racing",
        old="    dist.all_reduce(free, dist.ReduceOp.MIN)\n",
        new="",
    ),
    Fault(
        name="the rank that has the most room speaks for all",
        module="suites.zero_infinity.programs.racing",
        old="dist.ReduceOp.MIN",
        new="dist.ReduceOp.MAX",
    ),
    Fault(
        name="raced blocks that are gathered in float32",
        module="suites.zero_infinity.programs.racing",
        old=(
            "local = self.values.to(ctx.device, non_blocking=True).to(work.compute)\n"
            "        whole = torch.empty(ctx.world_size * len(local), dtype=local.dtype, device=ctx.device)\n"
            "        dist.all_gather_into_tensor(whole, local)\n"
            "        return whole[: work.numel]"
        ),
        new=(
            "local = self.values.to(ctx.device, non_blocking=True)\n"
            "        whole = torch.empty(ctx.world_size * len(local), dtype=local.dtype, device=ctx.device)\n"
            "        dist.all_gather_into_tensor(whole, local)\n"
            "        return whole[: work.numel].to(work.compute)"
        ),
    ),
    Fault(
        name="raced gradients that are scattered in float32",
        module="suites.zero_infinity.programs.racing",
        old="        size = len(self.values)\n        padded",
        new="        size = len(self.values)\n        gradient = gradient.to(MASTER)\n        padded",
    ),
    Fault(
        name="bytes over PCIe in the dtype of computation",
        module="suites.zero_infinity.programs.racing",
        old="return self.share(world_size) * MASTER.itemsize",
        new="return self.share(world_size) * self.compute.itemsize",
    ),
    Fault(
        name="a share of a block that is rounded down",
        module="suites.zero_infinity.programs.racing",
        old="return self.blocks * shard_size(self.numel, world_size)",
        new="return self.blocks * self.numel // world_size",
    ),
    Fault(
        name="learning rates begin anew when training goes on from files",
        module="suites.zero_infinity.programs.offloading",
        old="itertools.islice(enumerate(itertools.cycle(batches_on_device(ctx, problem))), done, None)",
        new="enumerate(itertools.islice(itertools.cycle(batches_on_device(ctx, problem)), done, None))",
    ),
    Fault(
        name="memory is looked at while nothing is trained",
        module="suites.zero_infinity.programs.offloading",
        old="            step()\n            after.append(",
        new="            after.append(",
    ),
    Fault(
        name="a mean gradient rounded to the dtype of computation",
        module=RACING,
        old="        exact = mine.to(MASTER).div_(ctx.world_size)\n",
        new="        exact = mine.div_(ctx.world_size).to(MASTER)\n",
    ),
    Fault(
        name="moments that the optimizer makes elsewhere",
        module=RACING,
        old="            self._optimizer.state[share.values] = dict(share.state)\n",
        new="            self._optimizer.state[id(share.values)] = dict(share.state)  # type: ignore[index]\n",
    ),
    Fault(
        name="learning rates begin anew after a stop",
        module=PROGRAMS,
        old="    coming = itertools.islice(enumerate(itertools.cycle(batches_on_device(ctx, problem))), done, None)\n",
        new="    coming = enumerate(itertools.islice(itertools.cycle(batches_on_device(ctx, problem)), done, None))\n",
    ),
    Fault(
        name="one file counts the steps of all parameters",
        module=PROGRAMS,
        old='home(f"{name}.{COUNT}", 1, COUNT_DTYPE)',
        new='home(f"all.{COUNT}", 1, COUNT_DTYPE)',
    ),
)
