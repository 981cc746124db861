"""Faults of the subject hybrid."""

from __future__ import annotations

from benchmarks.mutants.fault import Fault

TRAINING = "suites.hybrid.programs.training"
MODEL = "suites.shared.llama"
STAGE = "torch.distributed.pipelining.stage"

AXES = "suites.hybrid.programs.axes"
CLIPPING = "suites.hybrid.programs.clipping"
SEQUENCES = "suites.hybrid.programs.sequences"

FAULTS: tuple[Fault, ...] = (
    Fault(
        name="heads that are not summed over tp",
        module=TRAINING,
        old='        "attention.output": RowwiseParallel(),\n',
        new='        "attention.output": RowwiseParallel(output_layouts=__import__("torch.distributed.tensor", '
        'fromlist=["Partial"]).Partial()),\n',
    ),
    Fault(
        name="feed-forward layers that are not split over tp",
        module=TRAINING,
        old="            parallelize_module(layer, tensors, plan or tensor_plan())\n",
        new="            parallelize_module(layer, tensors, {name: style for name, style in tensor_plan().items() "
        'if "feed_forward" not in name})\n',
    ),
    Fault(
        name="replicas that never meet",
        module=TRAINING,
        old='    if batch_axes or "cp" in names:\n',
        new='    batch_axes = batch_axes[-1:]\n    if batch_axes or "cp" in names:\n',
    ),
    Fault(
        name="shards over the replicas too",
        module=TRAINING,
        old='    if batch_axes or "cp" in names:\n',
        new="    if len(batch_axes) > 1:\n        for layer in [*model.layers.values(), model]:\n"
        "            fully_shard(layer, mesh=mesh[batch_axes]._flatten())\n"
        '    elif batch_axes or "cp" in names:\n',
    ),
    Fault(
        name="axes of the mesh in another order",
        module=TRAINING,
        old="    return ctx.mesh(tuple(mesh.values()), tuple(mesh))\n",
        new="    return ctx.mesh(tuple(mesh.values())[::-1], tuple(mesh)[::-1])\n",
    ),
    Fault(
        name="every rank trains on the first one's share",
        module=TRAINING,
        old='        share = self.place("replicate") * degrees[1] + self.place("shard")\n',
        new="        share = 0\n",
    ),
    Fault(
        name="ranks that take each other's shares",
        module=TRAINING,
        old='        share = self.place("replicate") * degrees[1] + self.place("shard")\n',
        new='        share = math.prod(degrees) - 1 - self.place("replicate") * degrees[1] - self.place("shard")\n',
    ),
    Fault(
        name="replicas that have one share",
        module=TRAINING,
        old='        share = self.place("replicate") * degrees[1] + self.place("shard")\n',
        new='        share = self.place("shard")\n',
    ),
    Fault(
        name="gradients summed over microbatches instead of averaged",
        module=TRAINING,
        old="loss_fn=loss, scale_grads=True)",
        new="loss_fn=loss, scale_grads=False)",
    ),
    Fault(
        name="a pipeline that reduces the gradients of each microbatch",
        module=STAGE,
        old="            self.submod.set_requires_gradient_sync(False)\n",
        new="            self.submod.set_requires_gradient_sync(True)\n",
    ),
    Fault(
        name="the first batch at every step",
        module=TRAINING,
        old="enumerate(zip(batches, max_norms, strict=True), start=1)",
        new="enumerate(zip([batches[0]] * len(batches), max_norms, strict=True), start=1)",
    ),
    Fault(
        name="momentum that is lost after each step",
        module=TRAINING,
        old="        rank.optimizer.step()\n    parameters",
        new="        rank.optimizer.step()\n        rank.optimizer.state.clear()\n    parameters",
    ),
    Fault(
        name="attention that sees the future",
        module=MODEL,
        old="functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)",
        new="functional.scaled_dot_product_attention(query, key, value, enable_gqa=True)",
    ),
    Fault(
        name="rotary angles of the rank's own heads",
        module=MODEL,
        old="    rates = ROTARY_BASE ** (-torch.arange(half, dtype=exact, device=x.device) / half)\n",
        new="    rates = ROTARY_BASE ** (-torch.arange(half, dtype=exact, device=x.device) / (half + 1))\n",
    ),
    Fault(
        name="a stage that takes the next one's layers",
        module=MODEL,
        old="for index in shares[stage]})",
        new="for index in shares[stages - 1 - stage]})",
    ),
    Fault(
        name="clipping by each stage's own norm",
        module=TRAINING,
        old="    dist.all_reduce(squares)\n",
        new="    for axis in rank.mesh.mesh_dim_names or ():\n"
        '        if axis != "pp":\n'
        "            dist.all_reduce(squares, group=rank.mesh.get_group(axis))\n",
    ),
    Fault(
        name="clipping by the norm of the rank's own shards",
        module=TRAINING,
        old="    dist.all_reduce(squares)\n",
        new="    squares *= stages * rank.mesh.size() // stages\n",
    ),
    Fault(
        name="a norm whose squares tp adds up of what it replicates",
        module=CLIPPING,
        old="return (own.square() * parts / of_stage).sum()",
        new="return (own.square() * parts.max() / of_stage).sum()",
    ),
    Fault(
        name="a norm of shards that count as copies",
        module=CLIPPING,
        old="return (own.square() * parts / of_stage).sum()",
        new="return (own.square() / of_stage).sum()",
    ),
    Fault(
        name="a norm that is clipped by its square",
        module=TRAINING,
        old="    factor = (max_norm / norm).clamp(max=1.0)\n",
        new="    factor = (max_norm / squares).clamp(max=1.0)\n",
    ),
    Fault(
        name="a forward in float32",
        module=MODEL,
        old="            mixed = self.attend(rotary(query, places), rotary(key, places), value)\n",
        new="            halves = (part.float() for part in (rotary(query, places), rotary(key, places), value))\n"
        "            mixed = self.attend(*halves).to(x.dtype)\n",
    ),
    Fault(
        name="replicas train on the same part of the batch",
        module="suites.hybrid.programs.training",
        old='share = self.place("replicate") * degrees[1] + self.place("shard")',
        new='share = self.place("shard")',
    ),
    Fault(
        name="shards of tensor-parallel parameters are laid out as if tensors were not split",
        module="torch.distributed.fsdp._fully_shard._fsdp_param",
        old="split_factor = self._unsharded_dtensor_spec.num_shards_map[shard_dim]",
        new="split_factor = 1",
    ),
    Fault(
        name="gradients of fully sharded stages are not divided by the microbatches",
        module="torch.distributed.pipelining.stage",
        old=("        if grad_scale_factor != 1:\n            self.scale_grads(grad_scale_factor)\n"),
        new=(
            "        if grad_scale_factor != 1 and not isinstance(self.submod, FSDPModule):\n"
            "            self.scale_grads(grad_scale_factor)\n"
        ),
    ),
    Fault(
        name="hybrid sharding reduces over the shards' group again",
        module="torch.distributed.fsdp._fully_shard._fsdp_param_group",
        old="return self.mesh_info.replicate_process_group",
        new="return self.mesh_info.shard_process_group",
    ),
    Fault(
        name="rotary angles fall half as fast as they should: exponent -i/D, on all ranks alike",
        module="suites.shared.llama",
        old="(-torch.arange(half, dtype=exact, device=x.device) / half)",
        new="(-torch.arange(half, dtype=exact, device=x.device) / x.shape[-1])",
    ),
    Fault(
        name="hybrid sharding forgets the replicas in the divisor, where it divides by itself (not float32, bfloat16)",
        module="torch.distributed.fsdp._fully_shard._fsdp_collectives",
        old=(
            "    if all_reduce_group is not None:\n"
            "        data_parallel_size *= all_reduce_group.size()\n"
            "\n"
            "    if not overflow_risk"
        ),
        new="    if not overflow_risk",
    ),
    Fault(
        name="a parameter split by tensor parallelism and FSDP along one dimension is gathered in the wrong order",
        module="torch.distributed.fsdp._fully_shard._fsdp_param",
        old=(
            "                (\n"
            "                    _StridedShard(shard_dim, split_factor=split_factor)\n"
            "                    if split_factor > 1\n"
            "                    else fsdp_placement\n"
            "                ),\n"
            "                *self._unsharded_dtensor_spec.placements,\n"
        ),
        new=("                fsdp_placement,\n                *self._unsharded_dtensor_spec.placements,\n"),
    ),
    Fault(
        name="experts' gradients are summed over all ranks",
        module=AXES,
        old="group=place.copies if name in split else ctx.group",
        new="group=ctx.group",
    ),
    Fault(
        name="gradients of what all ranks hold are summed over the data axis alone",
        module=AXES,
        old="group=place.copies if name in split else ctx.group",
        new="group=place.copies",
    ),
    Fault(
        name="a split parameter's gradient is summed over its parts, not its copies",
        module=AXES,
        old="group=place.copies if name in split else ctx.group",
        new="group=place.within if name in split else ctx.group",
    ),
    Fault(
        name="places of a sequence are counted by the rank of the world",
        module=AXES,
        old="+ place.inner * len(x)",
        new="+ dist.get_rank() * len(x)",
    ),
    Fault(
        name="places of a sequence begin anew on each rank",
        module=AXES,
        old=" + place.inner * len(x)",
        new="",
    ),
    Fault(
        name="keys of another replica's sequence",
        module=AXES,
        old="all_gather_tensor_autograd(own, 0, place.within)",
        new="all_gather_tensor_autograd(own, 0, place.copies if place.copies.size() == place.degree else place.within)",
    ),
    Fault(
        name="tokens come back in the order in which they were sent",
        module=AXES,
        old="    return back[order.argsort()]",
        new="    return back[order]",
    ),
    Fault(
        name="tokens of all experts go to the first local one",
        module=AXES,
        old="torch.arange(local, device=x.device).repeat(place.degree)",
        new="torch.zeros(local, dtype=torch.int64, device=x.device).repeat(place.degree)",
    ),
    Fault(
        name="a split MLP's sum is halved, as a mean over two parts",
        module=AXES,
        old="    return mine\n",
        new="    return mine / 2\n",
    ),
    Fault(
        name="the mesh's axes in the other order",
        module=AXES,
        old="mesh = ctx.mesh((ctx.world_size // degree, degree), AXES)",
        new="mesh = ctx.mesh((degree, ctx.world_size // degree), AXES[::-1])",
    ),
    Fault(
        name="the gradient of the norm's scale goes through bfloat16",
        module=AXES,
        old="            total = leaf.grad.contiguous()\n",
        new="            total = (leaf.grad.bfloat16() if name == 'scale' else leaf.grad).double().contiguous()\n",
    ),
    Fault(
        name="gradients below the norm are scaled up to it",
        module="suites.hybrid.programs.training",
        old="factor = (max_norm / norm).clamp(max=1.0)",
        new="factor = max_norm / norm",
    ),
    Fault(
        name="shared gradients summed within only",
        module="suites.hybrid.programs.axes",
        old="group=place.copies if name in split else ctx.group)",
        new="group=place.copies if name in split else place.within)",
    ),
    Fault(
        name="context offset by global rank",
        module="suites.hybrid.programs.axes",
        old="torch.arange(len(x), device=x.device) + place.inner * len(x)",
        new="torch.arange(len(x), device=x.device) + place.mesh.get_rank() * len(x)",
    ),
    Fault(
        name="replicas left out of the divisor",
        module="torch.distributed.fsdp._fully_shard._fsdp_collectives",
        old=("    if all_reduce_group is not None:\n        data_parallel_size *= all_reduce_group.size()\n\n"),
        new="",
    ),
    Fault(
        name="the second pieces of a split sequence in the order of the ranks",
        module=SEQUENCES,
        old="held[:, :, :, 1].flip(0)",
        new="held[:, :, :, 1]",
    ),
    Fault(
        name="tokens of a split sequence are turned by their place on the rank",
        module=SEQUENCES,
        old="        return self.part(torch.arange(length * self.ranks, device=device), 0)\n",
        new="        return torch.arange(length, device=device)\n",
    ),
    Fault(
        name="queries of a split sequence see one piece too few, but for their own",
        module=SEQUENCES,
        old="attend(own, keys[:, :, :until], values[:, :, :until])\n",
        new="attend(own, *(x[:, :, max(0, until - 2 * piece) : until] for x in (keys, values)))\n",
    ),
    Fault(
        name="gathered values pass no gradient to the ranks that they come from",
        module=SEQUENCES,
        old="        keys, values = self._whole(key), self._whole(value)\n",
        new="        keys, values = self._whole(key), self._whole(value.detach())\n",
    ),
    Fault(
        name="gradients are averaged over the shards, and not over the parts of a sequence",
        module=TRAINING,
        old='mesh["shard", "cp"]._flatten() if {"shard", "cp"} <= {*names} else',
        new='mesh["shard"] if {"shard", "cp"} <= {*names} else',
    ),
    Fault(
        name="timed steps that add up gradients",
        module="suites.hybrid.programs.racing",
        old="        rank.optimizer.zero_grad()\n",
        new="",
    ),
    Fault(
        name="a pipeline's loss that is the last microbatch's",
        module=TRAINING,
        old="return torch.stack(losses).mean().detach()",
        new="return losses[-1].detach()",
    ),
    Fault(
        name="meshes that take an axis whole or not at all",
        module="suites.hybrid.programs.racing",
        old="for degree in (divisor for divisor in range(1, left + 1) if left % divisor == 0):",
        new="for degree in (1, left) if left > 1 else (1,):",
    ),
    Fault(
        name="squares of 16-bit norms added up in 16 bits",
        module=CLIPPING,
        old="own = norms([local(gradient) for gradient in gradients])",
        new="own = torch.stack(torch._foreach_norm([local(gradient) for gradient in gradients]))",
    ),
    Fault(
        name="the backward of a reduce_scatter that does not wait",
        module="torch.distributed._functional_collectives",
        old="""    # Backward is all_gather
    output = torch.ops._c10d_functional.all_gather_into_tensor(
        grad_output.contiguous(),
        group_size,
        group_name,
    )
    return wait_tensor(output), None, None, None""",
        new="""    # Backward is all_gather
    output = torch.ops._c10d_functional.all_gather_into_tensor(
        grad_output.contiguous(),
        group_size,
        group_name,
    )
    return output, None, None, None""",
    ),
    Fault(
        name="gradients are summed over the copies wherever something is split",
        module="suites.hybrid.programs.axes",
        old="group=place.copies if name in split else ctx.group",
        new="group=place.copies if split else ctx.group",
    ),
    Fault(
        name="DTensor forgets padding when it joins strided shards",
        module="torch.distributed.tensor.placement_types",
        old="base_offset = i * max_chunk_size",
        new="base_offset = i * shard.numel()",
        equivalent="full_tensor joins shards of FSDP and tensor parallelism in another way, which has no such offsets",
    ),
    Fault(
        name="norms that 16 bits round before they are squared",
        module=CLIPPING,
        old="norms([local(gradient) for gradient in gradients])",
        new=(
            "torch.stack(torch._foreach_norm([local(gradient) for gradient in gradients])).to(\n"
            "        torch.promote_types(gradients[0].dtype, torch.float32)\n"
            "    )"
        ),
    ),
    Fault(
        name="clipping by a norm of 16 bits",
        module=TRAINING,
        old="    norm = squares.sqrt()\n",
        new="    norm = squares.to(gradients[0].dtype).sqrt().to(squares.dtype)\n",
    ),
    Fault(
        name="a norm that is told after it was clipped",
        module=TRAINING,
        old="    return norm\n",
        new="    return norm.clamp(max=max_norm)\n",
    ),
    Fault(
        name="raced gradients below the norm scaled up to it",
        module="suites.hybrid.programs.racing",
        old="(max_norm / norm).clamp(max=1.0)",
        new="max_norm / norm",
    ),
    Fault(
        name="a plan of the caller's that is not taken",
        module="suites.hybrid.programs.training",
        old="plan or tensor_plan()",
        new="tensor_plan()",
    ),
    Fault(
        name="a split of the caller's that is not called",
        module="suites.hybrid.programs.training",
        old="    split(model, ranks)\n",
        new="    split_model(model, ranks)\n",
    ),
    Fault(
        name="a mesh that divides no sequence and ends the race",
        module="suites.hybrid.programs.racing",
        old=(
            "        x, target = (rank.part(part).to(ctx.device) for part in (tokens[:, :-1], tokens[:, 1:]))\n"
            "    except ValueError as error:\n"
            "        raise Infeasible(str(error)) from error\n"
        ),
        new=(
            "    except ValueError as error:\n"
            "        raise Infeasible(str(error)) from error\n"
            "    x, target = (rank.part(part).to(ctx.device) for part in (tokens[:, :-1], tokens[:, 1:]))\n"
        ),
    ),
    Fault(
        name="operations of attention that sees all tokens",
        module="suites.shared.llama",
        old="attention = 2.0 * config.layers * length**2 * config.dim",
        new="attention = 4.0 * config.layers * length**2 * config.dim",
    ),
    Fault(
        name="operations of as many heads of keys as of queries",
        module="suites.shared.llama",
        old="of_layer = 2 * config.dim**2 + 2 * config.dim * kv_dim",
        new="of_layer = 4 * config.dim**2",
    ),
    Fault(
        name="a loss and a norm in the dtype of the weights",
        module="suites.hybrid.programs.racing",
        old="together = torch.zeros(2, dtype=exact, device=ctx.device)",
        new="together = torch.zeros(2, dtype=held[0].dtype, device=ctx.device)",
    ),
    Fault(
        name="a raced pipeline that takes all sequences at once",
        module="suites.hybrid.programs.racing",
        old="microbatches=sequences // shares,",
        new="microbatches=1,",
    ),
    Fault(
        name="operations of a head as wide as the model",
        module="suites.shared.llama",
        old="weights = config.layers * of_layer + config.dim * config.vocabulary",
        new="weights = config.layers * of_layer + config.dim * config.dim",
    ),
    Fault(
        name="matrices of one shape that all begin with the same numbers",
        module="suites.shared.llama",
        old="manual_seed(seed + zlib.crc32(name.encode()))",
        new="manual_seed(seed)",
    ),
    Fault(
        name="degrees of the mesh in another order than its axes",
        module="suites.hybrid.programs.training",
        old="return ctx.mesh(tuple(mesh.values()), tuple(mesh))",
        new="return ctx.mesh(tuple(mesh.values())[::-1], tuple(mesh))",
    ),
    Fault(
        name="shares that are counted by the number of replicas",
        module="suites.hybrid.programs.training",
        old='self.place("replicate") * degrees[1] + self.place("shard")',
        new='self.place("replicate") * degrees[0] + self.place("shard")',
    ),
    Fault(
        name="1F1B under the name of GPipe",
        module="suites.hybrid.programs.training",
        old='"GPipe": ScheduleGPipe',
        new='"GPipe": Schedule1F1B',
    ),
    Fault(
        name="a pipeline's loss divided by all ranks",
        module="suites.hybrid.programs.racing",
        old="            together[0] = loss / of_stage\n",
        new="            together[0] = loss / ctx.world_size\n",
    ),
    Fault(
        name="tokens that arrive numbered expert by expert",
        module=AXES,
        old="torch.arange(local, device=x.device).repeat(place.degree).repeat_interleave(received)",
        new="torch.arange(local, device=x.device).repeat_interleave(place.degree).repeat_interleave(received)",
    ),
    Fault(
        name="hybrid shards divided by the copies alone",
        module="torch.distributed.fsdp._fully_shard._fsdp_collectives",
        old="        data_parallel_size *= all_reduce_group.size()\n",
        new="        data_parallel_size = all_reduce_group.size()\n",
    ),
    Fault(
        name="gradients that two axes split count too often",
        module=CLIPPING,
        old="            if not placement.is_replicate()  # is_shard() is False where two axes split one dimension\n",
        new="            if placement.is_shard()\n",
    ),
    # What combinations.py uses.
    Fault(
        name="a mean over all tokens, padding included",
        module="suites.hybrid.programs.combinations",
        old="/ int((target != IGNORED).sum())",
        new="/ target.numel()",
    ),
    Fault(
        name="gradients that never wait, in the last sequence too",
        module="suites.hybrid.programs.combinations",
        old="features.lazy and number + 1 < len(pieces)",
        new="features.lazy",
    ),
)
