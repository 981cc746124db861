"""Faults of the subject sharded_data_parallel."""

from __future__ import annotations

from benchmarks.mutants.fault import Fault

STAGES = "suites.sharded_data_parallel.programs.stages"
RACING = "suites.sharded_data_parallel.programs.racing"
TRAINING = "suites.sharded_data_parallel.programs.training"
COLLECTIVES = "torch.distributed.fsdp._fully_shard._fsdp_collectives"
ZERO = "torch.distributed.optim.zero_redundancy_optimizer"
STEPS = "suites.shared.training"

FAULTS: tuple[Fault, ...] = (
    Fault(
        name="an optimizer that was made of the whole parameters",
        module=STAGES,
        old="    optimizer = optimizer_for(problem, module.parameters())\n    return _step(",
        new="    optimizer = optimizer_for(problem, [p.full_tensor() for p in module.parameters()])\n    return _step(",
    ),
    Fault(
        name="a sum of gradients for their mean",
        module=STAGES,
        old="    optimizer = optimizer_for(problem, module.parameters())\n    return _step(",
        new="    for part in module.modules():\n        if isinstance(part, FSDPModule):\n"
        "            part.set_gradient_divide_factor(1.0)\n"
        "    optimizer = optimizer_for(problem, module.parameters())\n    return _step(",
    ),
    Fault(
        name="shards of the next rank",
        module=STAGES,
        old="    module = Network({name: value.to(home) for name, value in initial.items()})\n    shard_module(",
        new="    initial = {n: v.roll(-max(1, len(v) // ctx.world_size), 0) for n, v in initial.items()}\n"
        "    module = Network({name: value.to(home) for name, value in initial.items()})\n    shard_module(",
    ),
    Fault(
        name="gradient synchronization that stays off",
        module=STAGES,
        old="        yield\n        sharded.set_requires_gradient_sync(True)\n",
        new="        yield\n",
    ),
    Fault(
        name="gradients that are reduced for every microbatch",
        module=STAGES,
        old='        sharded.set_requires_gradient_sync(accumulation != "whole")\n',
        new="",
    ),
    Fault(
        name="hybrid sharding whose replicas never meet",
        module=STAGES,
        old="        mesh=ctx.mesh((ctx.world_size,)) if mesh is None else mesh,",
        new="        mesh=ctx.mesh((ctx.world_size,)) if mesh is None else mesh['shard'],",
    ),
    Fault(
        name="parameters that are gathered anew though they were kept",
        module=STAGES,
        old="        reshard_after_forward=reshard_after_forward,\n        mp_policy",
        new="        reshard_after_forward=True,\n        mp_policy",
    ),
    Fault(
        name="parameters that are kept though they were to go",
        module=STAGES,
        old="        reshard_after_forward=reshard_after_forward,\n        mp_policy",
        new="        reshard_after_forward=False,\n        mp_policy",
    ),
    Fault(
        name="mixed precision that computes in full",
        module=STAGES,
        old="        mp_policy=precision or MixedPrecisionPolicy(),\n        # Pinned",
        new="        mp_policy=MixedPrecisionPolicy(),\n        # Pinned",
    ),
    Fault(
        name="gradients that are summed in the precision of computation",
        module=STAGES,
        old="        mp_policy=precision or MixedPrecisionPolicy(),\n        # Pinned",
        new="        mp_policy=MixedPrecisionPolicy(param_dtype=precision.param_dtype) if precision else "
        "MixedPrecisionPolicy(),\n        # Pinned",
    ),
    Fault(
        name="gradients that are summed in float32, though parameters are float64",
        module=STAGES,
        old="        mp_policy=precision or MixedPrecisionPolicy(),\n        # Pinned",
        new="        mp_policy=precision if precision and precision.param_dtype else "
        "MixedPrecisionPolicy(reduce_dtype=torch.float32),\n        # Pinned",
    ),
    Fault(
        name="a broadcast of all parameters besides",
        module=STAGES,
        old="    def remembered() -> Tensors:\n        results = step()\n",
        new="    def remembered() -> Tensors:\n        results = step()\n        for value in module.parameters():\n"
        "            dist.broadcast(local_shard(value).clone(), 0)\n",
    ),
    Fault(
        name="ZeRO-1 whose ranks do not hear of each other's updates",
        module=ZERO,
        old="    def _sync_params(self):\n",
        new="    def _sync_params(self):\n        return\n",
    ),
    Fault(
        name="ZeRO-1 in which every rank keeps all of the state",
        module=STAGES,
        old="    optimizer = zero_redundancy()(\n        module.parameters(), kind, "
        "parameters_as_bucket_view=parameters_as_bucket_view, **arguments\n    )",
        new="    optimizer = kind(module.parameters(), **arguments)",
    ),
    Fault(
        name="the first batch at every step",
        module=STEPS,
        old="    coming = enumerate(itertools.cycle(batches))\n    names",
        new="    coming = enumerate(itertools.cycle(batches[:1]))\n    names",
    ),
    Fault(
        name="an optimizer that forgets its state",
        module=STEPS,
        old="        optimizer.step()\n        return {",
        new="        optimizer.state.clear()\n        optimizer.step()\n        return {",
    ),
    Fault(
        name="gradients that are rounded to bfloat16 before the update",
        module=STEPS,
        old="        optimizer.step()\n        return {",
        new="        for value in parameters.values():\n            if value.dtype == torch.float32:\n"
        "                value.grad = value.grad.bfloat16().to(value.dtype)\n"
        "        optimizer.step()\n        return {",
    ),
    Fault(
        name="momenta in bfloat16",
        module=STEPS,
        old="        optimizer.step()\n        return {",
        new="        for state in optimizer.state.values():\n            if 'momentum_buffer' in state:\n"
        "                state['momentum_buffer'].copy_(state['momentum_buffer'].bfloat16())\n"
        "        optimizer.step()\n        return {",
    ),
    Fault(
        name="a model that is sharded as a whole, not by layer",
        module=STAGES,
        old="    if module.first is not None:\n        fully_shard(module.first, **options)\n",
        new="",
    ),
    Fault(
        name="clipping by the norm of the rank's own shards",
        module=TRAINING,
        old="        norm = nn.utils.clip_grad_norm_(network.parameters(), max_norm)\n        optimizer.step()\n",
        new="        norm = torch.stack([p.grad.to_local().norm() for p in network.parameters()]).norm()\n"
        "        for p in network.parameters():\n            p.grad.to_local().mul_(min(1.0, max_norm / float(norm)))\n"
        "        optimizer.step()\n",
    ),
    Fault(
        name="a norm whose squares are not added up over the shards",
        module="torch.nn.utils.clip_grad",
        old="    total_norm = torch.linalg.vector_norm(\n"
        "        torch.stack([norm.to(first_device) for norm in norms]), norm_type\n    )",
        new="    total_norm = torch.linalg.vector_norm(torch.stack([\n"
        "        (norm.to_local() if hasattr(norm, 'to_local') else norm).to(first_device) for norm in norms\n"
        "    ]), norm_type)",
    ),
    Fault(
        name="a scaler whose ranks decide by their own shards",
        module="torch.distributed.tensor._dispatch",
        old="    target_tensor.copy_(found_inf)\n",
        new="",
    ),
    Fault(
        name="a scale that no overflow lowers",
        module=TRAINING,
        old="        scaler.update()\n",
        new="",
    ),
    Fault(
        name="gradients that are clipped before they are unscaled",
        module=TRAINING,
        old="        scaler.unscale_(optimizer)\n        nn.utils.clip_grad_norm_(network.parameters(), MAX_NORM)\n",
        new="        nn.utils.clip_grad_norm_(network.parameters(), MAX_NORM)\n        scaler.unscale_(optimizer)\n",
    ),
    Fault(
        name="a mesh whose replicas and shards are exchanged",
        module=STAGES,
        old='ctx.mesh((replicas, ctx.world_size // replicas), ("replicate", "shard"))',
        new='ctx.mesh((replicas, ctx.world_size // replicas), ("shard", "replicate"))["replicate", "shard"]',
    ),
    Fault(
        name="gradients that are rounded to bfloat16 after the reduction",
        module=COLLECTIVES,
        old="        reduce_output = _to_dtype_if_needed(reduce_output, orig_dtype)",
        new="        reduce_output = _to_dtype_if_needed(reduce_output.bfloat16(), orig_dtype or reduce_dtype)",
    ),
    Fault(
        name="gradients that are reduced as the device computes them, whatever the policy says",
        module=COLLECTIVES,
        old="    reduce_dtype = reduce_dtype or grad_dtype\n",
        new="    reduce_dtype = grad_dtype\n",
    ),
    Fault(
        name="a divisor that leaves out the replicas",
        module=COLLECTIVES,
        old="        data_parallel_size *= all_reduce_group.size()",
        new="        pass",
    ),
    Fault(
        name="float64 and float16 gradients that are divided before the sum alone",
        module=COLLECTIVES,
        old="        post_factor = factor / pre_factor",
        new="        post_factor = 1.0",
    ),
    Fault(
        name="an all-reduce over the ranks of the shards, not over the replicas",
        module=COLLECTIVES,
        old="                    group=all_reduce_group,\n                    op=all_reduce_op,",
        new="                    group=reduce_scatter_group,\n                    op=all_reduce_op,",
    ),
    Fault(
        name="a place in the flat gradient that leaves out the padding",
        module=COLLECTIVES,
        old="            padded_sharded_numel = padded_unsharded_size.numel() // world_size",
        new="            padded_sharded_numel = fsdp_param.sharded_size.numel()",
    ),
    Fault(
        name="gradients of microbatches that replace one another",
        module="torch.distributed.fsdp._fully_shard._fsdp_param",
        old="            self.unsharded_accumulated_grad += self.unsharded_param.grad",
        new="            self.unsharded_accumulated_grad = self.unsharded_param.grad",
    ),
    Fault(
        name="accumulated gradient of the last step is not let go of",
        module="torch.distributed.fsdp._fully_shard._fsdp_param_group",
        old=(
            "unsharded_grads.append(fsdp_param.unsharded_accumulated_grad_data)\n"
            "                    fsdp_param.unsharded_accumulated_grad = None\n"
        ),
        new="unsharded_grads.append(fsdp_param.unsharded_accumulated_grad_data)\n",
    ),
    Fault(
        name="hybrid sharding divides by the shards alone, except in float32 and bfloat16",
        module="torch.distributed.fsdp._fully_shard._fsdp_collectives",
        old=("    if all_reduce_group is not None:\n        data_parallel_size *= all_reduce_group.size()\n"),
        new=(
            "    if all_reduce_group is not None and not overflow_risk:\n"
            "        data_parallel_size *= all_reduce_group.size()\n"
        ),
    ),
    Fault(
        name="offset into scattered gradients without padding: wrong on ranks whose shard is shorter",
        module="torch.distributed.fsdp._fully_shard._fsdp_collectives",
        old=(
            "            padded_sharded_numel = padded_unsharded_size.numel() // world_size\n"
            "            flat_grad_offset += padded_sharded_numel\n"
        ),
        new="            flat_grad_offset += new_sharded_grad.numel()\n",
    ),
    Fault(
        name="ZeRO-1 shares parameters out by their number, not by their size",
        module="torch.distributed.optim.zero_redundancy_optimizer",
        old="                        sizes[rank] += param.numel()\n",
        new="                        sizes[rank] += 1\n",
    ),
    Fault(
        name="gathered parameters stay allocated when the module is sharded again",
        module="torch.distributed.fsdp._fully_shard._fsdp_param",
        old=("        self._setattr_on_modules(self.sharded_param)\n        self.free_unsharded_param()\n"),
        new="        self._setattr_on_modules(self.sharded_param)\n",
    ),
    Fault(
        name="every microbatch reduces",
        module="suites.sharded_data_parallel.programs.stages",
        old=(
            '        sharded.set_requires_gradient_sync(accumulation != "whole")\n'
            '        sharded.set_requires_all_reduce(accumulation != "sharded")\n'
            "        yield\n"
            "        sharded.set_requires_gradient_sync(True)\n"
            "        sharded.set_requires_all_reduce(True)"
        ),
        new=(
            "        sharded.set_requires_all_reduce(False)\n"
            "        yield\n"
            "        sharded.set_requires_all_reduce(True)"
        ),
    ),
    Fault(
        name="gradient offset without padding",
        module="torch.distributed.fsdp._fully_shard._fsdp_collectives",
        old="            padded_sharded_numel = padded_unsharded_size.numel() // world_size\n",
        new="            padded_sharded_numel = fsdp_param.sharded_size.numel()\n",
    ),
    Fault(
        name="microbatches accumulated in low precision",
        module="torch.distributed.fsdp._fully_shard._fsdp_param",
        old="        self.unsharded_accumulated_grad = unsharded_grad.to(self.reduce_dtype)",
        new="        self.unsharded_accumulated_grad = unsharded_grad",
    ),
    Fault(
        name="last ranks parameters not sent",
        module="torch.distributed.optim.zero_redundancy_optimizer",
        old=(
            "        for rank in range(self.world_size):\n"
            "            handles.extend(self._broadcast_params_from_rank(rank))"
        ),
        new=(
            "        for rank in range(self.world_size - 1):\n"
            "            handles.extend(self._broadcast_params_from_rank(rank))"
        ),
    ),
    # What is raced.
    Fault(
        name="a race that forgets reshard_after_forward=False",
        module=RACING,
        old="reshard_after_forward=way.reshard",
        new="reshard_after_forward=True",
    ),
    Fault(
        name="a raced prefetch that is off",
        module=RACING,
        old="    if way.prefetch:\n",
        new="    if not units:\n",
    ),
    Fault(
        name="a raced mixed precision that reduces in bfloat16",
        module=RACING,
        old="reduce_dtype=work.parameters if way.mixed else None",
        new="reduce_dtype=None",
    ),
    Fault(
        name="a raced norm that counts each replica",
        module=RACING,
        old="squared_norm(own) / training.copies",
        new="squared_norm(own)",
    ),
    Fault(
        name="a raced ZeRO-1 whose ranks hold all of the state",
        module=RACING,
        old='    if way.sharded == "state":\n',
        new='    if way.sharded == "all state":\n',
    ),
    Fault(
        name="timed clipping after the optimizer's step",
        module=RACING,
        old="        torch._foreach_mul_(own, (max_norm / norm).clamp(max=1.0))\n        training.optimizer.step()\n",
        new="        training.optimizer.step()\n        torch._foreach_mul_(own, (max_norm / norm).clamp(max=1.0))\n",
    ),
    Fault(
        name="a changed learning rate that ZeRO-1 does not hear of",
        module=ZERO,
        old="        self._sync_param_groups(self.param_groups, self.optim.param_groups)\n\n"
        "        # Run the optimizer step on this shard only\n",
        new="",
    ),
    Fault(
        name="a backward that prefetches one unit too few",
        module=RACING,
        old="units[max(0, place - way.prefetch) : place][::-1]",
        new="units[max(0, place - way.prefetch + 1) : place][::-1]",
    ),
    Fault(
        name="a raced mean over the even ranks of an odd world",
        module=RACING,
        old="loss.detach().to(exact) / ctx.world_size",
        new="loss.detach().to(exact) / (ctx.world_size // 2 * 2)",
    ),
    Fault(
        name="the whole model that is not told to reshard",
        module="suites.sharded_data_parallel.programs.racing",
        old="""    for unit in (*units, model):
        # Said of the whole as well, which would stay gathered otherwise.
        fully_shard(unit, mesh=ctx.mesh((ctx.world_size,)), reshard_after_forward=way.reshard, mp_policy=policy)""",
        new="""    for unit in units:
        fully_shard(unit, mesh=ctx.mesh((ctx.world_size,)), reshard_after_forward=way.reshard, mp_policy=policy)
    fully_shard(model, mesh=ctx.mesh((ctx.world_size,)), mp_policy=policy)""",
    ),
    Fault(
        name="FSDP2's partial sums of earlier microbatches overwritten",
        module="torch.distributed.fsdp._fully_shard._fsdp_collectives",
        old="                    partial_reduce_output += reduce_output",
        new="                    partial_reduce_output = reduce_output",
    ),
    Fault(
        name="FSDP2's second divisor rounded down",
        module="torch.distributed.fsdp._fully_shard._fsdp_collectives",
        old="post_factor = factor / pre_factor",
        new="post_factor = factor // pre_factor",
    ),
    Fault(
        name="ZeRO-1 gives all parameters to the first rank",
        module="torch.distributed.optim.zero_redundancy_optimizer",
        old="                        sizes[rank] += param.numel()\n",
        new="",
    ),
    Fault(
        name="FSDP2's gradients replaced by those of a later backward",
        module="torch.distributed.fsdp._fully_shard._fsdp_collectives",
        old="fsdp_param.sharded_param.grad._local_tensor += new_sharded_grad",
        new="fsdp_param.sharded_param.grad._local_tensor.copy_(new_sharded_grad)",
    ),
    Fault(
        name="ZeRO-1 waits for the last broadcast alone",
        module="torch.distributed.optim.zero_redundancy_optimizer",
        old="_ = [x.wait() for x in handles]",
        new="handles[-1].wait()",
    ),
    Fault(
        name="ZeroRedundancyOptimizer does not wait for its broadcasts",
        module="torch.distributed.optim.zero_redundancy_optimizer",
        old="        _ = [x.wait() for x in handles]\n",
        new="        del handles\n",
    ),
    Fault(
        name="raced norms that 16 bits round before they are squared",
        module="suites.sharded_data_parallel.programs.racing",
        old="squared_norm(own) / training.copies",
        new="torch.stack(torch._foreach_norm(own)).to(exact).square().sum() / training.copies",
    ),
    Fault(
        name="the same tokens on every rank",
        module="suites.shared.llm",
        old="generator=generator)[ctx.rank].to(ctx.device)",
        new="generator=generator)[0].to(ctx.device)",
    ),
    Fault(
        name="raced gradients below the norm scaled up to it",
        module="suites.sharded_data_parallel.programs.racing",
        old="(max_norm / norm).clamp(max=1.0)",
        new="max_norm / norm",
    ),
    Fault(
        name="mixed precision that begins with other weights than full",
        module="suites.sharded_data_parallel.programs.racing",
        old="weight.copy_(weight.to(work.compute))  # rounded",
        new="weight.copy_(weight)  # rounded",
    ),
    Fault(
        name="promised bytes as two ranks send them",
        module="suites.sharded_data_parallel.reference",
        old="return numel(work.config) * each * (world_size - 1) / world_size",
        new="return numel(work.config) * each / world_size",
    ),
    Fault(
        name="counted bytes as two ranks send them",
        module="suites.sharded_data_parallel.programs.racing",
        old="return whole * (world_size - 1) / world_size",
        new="return whole / world_size",
    ),
    Fault(
        name="a loss that is returned in the dtype of computation",
        module="suites.sharded_data_parallel.programs.racing",
        old="exact = torch.promote_types(work.compute, torch.float32)",
        new="exact = work.compute",
    ),
    Fault(
        name="parameters of feed-forward layers as wide as the model",
        module="suites.sharded_data_parallel.reference",
        old="3 * config.dim * config.hidden + 2 * config.dim",
        new="3 * config.dim * config.dim + 2 * config.dim",
    ),
    Fault(
        name="tokens that are their own targets",
        module="suites.shared.llm",
        old="mine[:, 1:].contiguous()",
        new="mine[:, :-1].contiguous()",
    ),
    Fault(
        name="a prefetch in backward in the order of the forward",
        module="suites.sharded_data_parallel.programs.racing",
        old="fsdp(units[max(0, place - way.prefetch) : place][::-1])",
        new="fsdp(units[max(0, place - way.prefetch) : place])",
    ),
    Fault(
        name="shared storage counted once for each tensor",
        module=STAGES,
        old="    nbytes = sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())\n",
        new="    nbytes = sum(storage.nbytes() for storage in storages)\n",
    ),
    Fault(
        name="the root stays gathered after the forward",
        module=RACING,
        old="reshard_after_forward=way.reshard, mp_policy=policy)",
        new="reshard_after_forward=way.reshard and unit is not model, mp_policy=policy)",
    ),
    Fault(
        name="torch: HSDP's partial sum survives the step",
        module=COLLECTIVES,
        old=(
            "        all_reduce_input,\n"
            "        all_reduce_event,\n"
            "        None,\n"
            "    )\n"
            "\n"
            "\n"
            "def foreach_reduce_scatter_copy_in(\n"
        ),
        new=(
            "        all_reduce_input,\n"
            "        all_reduce_event,\n"
            "        partial_reduce_output,\n"
            "    )\n"
            "\n"
            "\n"
            "def foreach_reduce_scatter_copy_in(\n"
        ),
    ),
    Fault(
        name="torch: ZeRO-1 balances parameters by their number",
        module=ZERO,
        old=(
            "                        param_group_params_per_rank[rank].append(param)\n"
            "                        sizes[rank] += param.numel()\n"
        ),
        new=(
            "                        param_group_params_per_rank[rank].append(param)\n"
            "                        sizes[rank] += 1\n"
        ),
    ),
    Fault(
        name="the first layer reshards anyway",
        module=STAGES,
        old="        fully_shard(module.first, **options)\n",
        new=(
            "        fully_shard(module.first, **{name: value for name, value in options.items() if "
            'name != "reshard_after_forward"})\n'
        ),
    ),
    Fault(
        name="HSDP keeps the last partial sum alone",
        module=COLLECTIVES,
        old=(
            "                if partial_reduce_output is not None:\n"
            "                    partial_reduce_output += reduce_output\n"
            "                else:\n"
            "                    partial_reduce_output = reduce_output\n"
        ),
        new="                partial_reduce_output = reduce_output\n",
    ),
    # What settings.py and consolidated.py use.
    Fault(
        name="FSDP2's gradients of another dimension cut along the first",
        module=COLLECTIVES,
        old="            chunks = torch.chunk(unsharded_grad, world_size, dim=shard_dim)",
        new="            chunks = torch.chunk(unsharded_grad.view(-1), world_size, dim=0)",
    ),
    Fault(
        name="FSDP2's gathered parameters of another dimension joined along the first",
        module=COLLECTIVES,
        old="                torch.cat(chunks, dim=shard_dim, out=cat_out)",
        new="                cat_out.copy_(torch.cat(chunks, dim=0).view(cat_out.shape))",
    ),
    Fault(
        name="FSDP2 forgets a divisor that the user sets",
        module="torch.distributed.fsdp._fully_shard._fsdp_param_group",
        old="                self.gradient_divide_factor,\n",
        new="                None,\n",
    ),
    Fault(
        name="a hook that sums over replicas",
        module="suites.sharded_data_parallel.programs.settings",
        old="        reduced.div_(2)\n",
        new="",
    ),
    Fault(
        name="an all-gather of our own from one root",
        module="suites.sharded_data_parallel.programs.settings",
        old="group_src=rank, async_op=True)",
        new="group_src=0, async_op=True)",
    ),
    Fault(
        name="an ignored parameter whose gradient stays the rank's own",
        module="suites.sharded_data_parallel.programs.settings",
        old="    network.shortcut.weight.register_hook(_averaged)\n",
        new="",
    ),
    Fault(
        name="a consolidated state of the first rank's parameters only",
        module=ZERO,
        old="        for rank, local_state_dict in enumerate(self._all_state_dicts):\n",
        new="        for rank, local_state_dict in enumerate(self._all_state_dicts[:1]):\n",
    ),
    Fault(
        name="a third step without the consolidated state",
        module="suites.sharded_data_parallel.programs.consolidated",
        old="    second.load_state_dict(state)\n",
        new="",
    ),
    # What inputs.py uses.
    Fault(
        name="FSDP2's float16 gradients divided after the sum alone",
        module=COLLECTIVES,
        old="        while factor % pre_factor == 0 and factor / pre_factor > pre_factor:\n",
        new="        while False:\n",
    ),
    Fault(
        name="FSDP2's float16 gradients divided by all ranks before the sum",
        module=COLLECTIVES,
        old="        while factor % pre_factor == 0 and factor / pre_factor > pre_factor:\n",
        new="        while pre_factor < factor:\n",
    ),
    Fault(
        name="a gradient of the layer that runs twice from its last run only",
        module="suites.sharded_data_parallel.programs.inputs",
        old=(
            "            x = checkpoint(self._hidden, x, use_reentrant=False) if self._recompute else self._hidden(x)\n"
        ),
        new="            x = self._hidden(x.detach())\n",
    ),
    Fault(
        name="a last layer with a weight of its own",
        module="suites.sharded_data_parallel.programs.inputs",
        old="        self.last.weight = self.first.weight\n",
        new="",
    ),
)
