"""Faults of the subject compression."""

from __future__ import annotations

from benchmarks.mutants.fault import Fault

AVERAGING = "suites.compression.programs.averaging"
QUANTIZED = "suites.compression.programs.quantized"
DEFAULT = "torch.distributed.algorithms.ddp_comm_hooks.default_hooks"
POWER = "torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook"

FAULTS: tuple[Fault, ...] = (
    # torch's hooks that cast.
    Fault(
        name="a hook that sums what it compresses and never divides",
        module=DEFAULT,
        old="compressed_tensor = buffer.to(dtype).div_(world_size)",
        new="compressed_tensor = buffer.to(dtype)",
    ),
    Fault(
        name="a hook that rounds to float8 on the way",
        module=DEFAULT,
        old="compressed_tensor = buffer.to(dtype).div_(world_size)",
        new="compressed_tensor = buffer.to(torch.float8_e4m3fn).to(dtype).div_(world_size)",
    ),
    Fault(
        name="a hook that gives back its own gradients",
        module=DEFAULT,
        old="        decompressed_tensor.copy_(value)\n",
        new="",
    ),
    Fault(
        name="a hook that casts to bfloat16 for float16, too",
        module=DEFAULT,
        old="return _compress_hook(torch.float16, process_group, bucket)",
        new="return _compress_hook(torch.bfloat16, process_group, bucket)",
    ),
    Fault(
        name="a hook that says bfloat16 and sends float32",
        module=DEFAULT,
        old="return _compress_hook(torch.bfloat16, process_group, bucket)",
        new="return _compress_hook(torch.float32, process_group, bucket)",
    ),
    Fault(
        name="a hook of all_reduce that goes through bfloat16",
        module=DEFAULT,
        old="    return _allreduce_fut(process_group, bucket.buffer())",
        new="    bucket.buffer().copy_(bucket.buffer().bfloat16())\n"
        "    return _allreduce_fut(process_group, bucket.buffer())",
    ),
    Fault(
        name="a hook that leaves out a bucket's last element",
        module=DEFAULT,
        old="        decompressed_tensor.copy_(value)\n",
        new="        decompressed_tensor[: max(1, len(value) - 1)].copy_(value[: max(1, len(value) - 1)])\n",
    ),
    # The 8-bit hook.
    Fault(
        name="8 bits that are truncated, not rounded",
        module=QUANTIZED,
        old="rounded = scaled if dtype.is_floating_point else scaled.round()",
        new="rounded = scaled if dtype.is_floating_point else scaled.trunc()",
    ),
    Fault(
        name="scales of the neighbouring block",
        module=QUANTIZED,
        old="return quantized.view(dtype).float() * scales",
        new="return quantized.view(dtype).float() * scales.roll(1, 0)",
    ),
    Fault(
        name="8 bits without a scale",
        module=QUANTIZED,
        old="scales = magnitude / magnitude.new_full((), largest)",
        new="scales = torch.ones_like(magnitude)",
    ),
    Fault(
        name="one scale for all blocks of a rank",
        module=QUANTIZED,
        old="magnitude = blocks.abs().amax(dim=1, keepdim=True)",
        new="magnitude = blocks.abs().max().expand(len(blocks), 1).contiguous()",
    ),
    Fault(
        name="a scale of the largest number, and not of the largest magnitude",
        module=QUANTIZED,
        old="magnitude = blocks.abs().amax(dim=1, keepdim=True)",
        new="magnitude = blocks.amax(dim=1, keepdim=True).abs()",
    ),
    Fault(
        name="scales that are sent in bfloat16",
        module=QUANTIZED,
        old="    dist.all_to_all_single(their_scales, scales)\n",
        new="    dist.all_to_all_single(their_scales, scales.bfloat16().float())\n",
    ),
    Fault(
        name="a mean of 8 bits that is a sum",
        module=QUANTIZED,
        old=".view(ranks, -1, parts.shape[1]).mean(dim=0)",
        new=".view(ranks, -1, parts.shape[1]).sum(dim=0)",
    ),
    Fault(
        name="a mean of 8 bits that leaves out the last rank",
        module=QUANTIZED,
        old=".view(ranks, -1, parts.shape[1]).mean(dim=0)",
        new=".view(ranks, -1, parts.shape[1])[:-1].sum(dim=0) / ranks",
    ),
    Fault(
        name="8 bits whose second rounding is left to chance: the blocks' first scales again",
        module=QUANTIZED,
        old="    dist.all_gather_into_tensor(all_scales, shard_scales)\n",
        new="    dist.all_gather_into_tensor(all_scales, shard_scales)\n    all_scales = scales\n",
    ),
    Fault(
        name="feedback that is forgotten",
        module=QUANTIZED,
        old="        own += state.errors[index][0]\n",
        new="        pass\n",
    ),
    Fault(
        name="feedback of the rank's own error alone, not of the mean's",
        module=QUANTIZED,
        old="    if shard_error is not None:\n        shard += shard_error\n",
        new="",
    ),
    Fault(
        name="feedback with the wrong sign",
        module=QUANTIZED,
        old="        own += state.errors[index][0]\n",
        new="        own -= state.errors[index][0]\n",
    ),
    Fault(
        name="feedback of another bucket",
        module=QUANTIZED,
        old="index, feedback = bucket.index(), state.feedback",
        new="index, feedback = 0, state.feedback",
    ),
    Fault(
        name="feedback of what overflowed",
        module=QUANTIZED,
        old="own_error.nan_to_num_(0, 0, 0), shard_error.nan_to_num_(0, 0, 0)",
        new="own_error, shard_error",
    ),
    Fault(
        name="feedback from the first step on, before buckets are arranged anew",
        module=QUANTIZED,
        old="feedback = bucket.index(), state.feedback and state.steps >= state.start",
        new="feedback = bucket.index(), state.feedback",
    ),
    Fault(
        name="a broadcast of rank 0's float32 gradients besides",
        module=QUANTIZED,
        old="    index, feedback = bucket.index()",
        new="    dist.broadcast(buffer.clone(), 0)\n    index, feedback = bucket.index()",
    ),
    Fault(
        name="scales that every rank gathers from all besides",
        module=QUANTIZED,
        old="    dist.all_to_all_single(their_scales, scales)\n",
        new="    dist.all_to_all_single(their_scales, scales)\n"
        "    dist.all_gather([torch.empty_like(scales) for _ in range(dist.get_world_size())], scales)\n",
    ),
    Fault(
        name="a bucket whose tail that fills no block is dropped",
        module=QUANTIZED,
        old="done.set_result(buffer.copy_(mean.view(-1)[: buffer.numel()]))",
        new="whole = max(1, buffer.numel() // state.block * state.block)\n"
        "    buffer[:whole].copy_(mean.view(-1)[:whole])\n    done.set_result(buffer)",
    ),
    # PowerSGD.
    Fault(
        name="PowerSGD whose Qs are not divided by the number of ranks",
        module=POWER,
        old="fut.value().div_(world_size)\n\n        for p, q, tensor in zip(",
        new="fut.value()\n\n        for p, q, tensor in zip(",
    ),
    Fault(
        name="PowerSGD whose Ps are not made orthogonal",
        module=POWER,
        old="        for p in ps:\n            _orthogonalize(p, state.orthogonalization_epsilon)\n",
        new="",
    ),
    Fault(
        name="PowerSGD whose Ps are the rank's own",
        module=POWER,
        old="""        return (
            dist.all_reduce(
                state.p_memory_dict[bucket_index], group=group_to_use, async_op=True
            )
            .get_future()
            .wait()[0]
        )

    def compute_qs""",
        new="        return state.p_memory_dict[bucket_index]\n\n    def compute_qs",
    ),
    Fault(
        name="PowerSGD that feeds no error back",
        module=POWER,
        old="            input_tensor.add_(state.error_dict[bucket_index])\n        else:\n            logger.info(\n"
        '                "A zero tensor of length %s that represents local error is created.",\n'
        "                total_length,\n            )\n            state.error_dict[bucket_index] = torch.zeros(\n"
        "                total_length, device=device, dtype=dtype\n            )\n\n"
        "        # Keep a copy of the input tensor,\n"
        "        # so that we can compute the local error caused by compression later,\n",
        new="            pass\n        else:\n            state.error_dict[bucket_index] = torch.zeros(\n"
        "                total_length, device=device, dtype=dtype\n            )\n\n",
    ),
    Fault(
        name="PowerSGD whose vectors are summed, not averaged",
        module=POWER,
        old="uncompressed_tensors_memory = fut.value()[0].div_(world_size)",
        new="uncompressed_tensors_memory = fut.value()[0]",
    ),
    Fault(
        name="PowerSGD whose vectors stay the rank's own",
        module=POWER,
        old="            idx += tensor.numel()\n\n        # Since these Ps",
        new="            idx += 0\n\n        # Since these Ps",
    ),
    Fault(
        name="PowerSGD that starts with whatever lies in memory for Q",
        module=POWER,
        old="        need_randomize_qs = True\n        # If warm-start is disabled, low-rank tensors will",
        new="        need_randomize_qs = False\n        # If warm-start is disabled, low-rank tensors will",
    ),
    Fault(
        name="PowerSGD of fewer ranks' gradients in its first steps",
        module=POWER,
        old="        return default._allreduce_fut(group_to_use, input_tensor)\n\n    # Apply PowerSGD after "
        "`start_powerSGD_iter` iterations.\n    device = input_tensor.device\n    dtype = input_tensor.dtype\n\n"
        "    # Incorporate the error from the previous state into the gradients.\n    bucket_index = bucket.index()\n"
        "    input_tensor_cp = None\n    total_length = input_tensor.shape[0]\n    if state.use_error_feedback:\n"
        "        if bucket_index in state.error_dict:\n            input_tensor.add_",
        new="        fut = torch.futures.Future()\n        fut.set_result(input_tensor)\n        return fut\n\n"
        "    device = input_tensor.device\n    dtype = input_tensor.dtype\n    bucket_index = bucket.index()\n"
        "    input_tensor_cp = None\n    total_length = input_tensor.shape[0]\n    if state.use_error_feedback:\n"
        "        if bucket_index in state.error_dict:\n            input_tensor.add_",
    ),
    Fault(
        name="an overflow stays in the error of the shard",
        module="suites.compression.programs.quantized",
        old="shard_error.nan_to_num_(0, 0, 0)\n",
        new="shard_error\n",
    ),
    Fault(
        name="half precision is summed first and divided afterwards",
        module="torch.distributed.algorithms.ddp_comm_hooks.default_hooks",
        old=(
            "    compressed_tensor = buffer.to(dtype).div_(world_size)\n"
            "\n"
            "    def decompress(fut):\n"
            "        decompressed_tensor = buffer\n"
            "        # Decompress in place to reduce the peak memory.\n"
            "        # See: https://github.com/pytorch/pytorch/issues/45968\n"
            "        value = fut if isinstance(fut, torch.Tensor) else fut.value()[0]\n"
            "        decompressed_tensor.copy_(value)\n"
        ),
        new=(
            "    compressed_tensor = buffer.to(dtype)\n"
            "\n"
            "    def decompress(fut):\n"
            "        decompressed_tensor = buffer\n"
            "        # Decompress in place to reduce the peak memory.\n"
            "        # See: https://github.com/pytorch/pytorch/issues/45968\n"
            "        value = fut if isinstance(fut, torch.Tensor) else fut.value()[0]\n"
            "        decompressed_tensor.copy_(value).div_(world_size)\n"
        ),
    ),
    Fault(
        name="PowerSGD's error forgets what was fed back",
        module="torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook",
        old=(
            "            state.error_dict[bucket_index] = input_tensor_cp - input_tensor\n"
            "        if not state.warm_start:\n"
            "            state.p_memory_dict.clear()\n"
            "            state.q_memory_dict.clear()\n"
            "\n"
            "        state.maybe_increase_iter(bucket)\n"
            "\n"
            "        return input_tensor\n"
        ),
        new=(
            "            state.error_dict[bucket_index] = (\n"
            "                input_tensor_cp - state.error_dict[bucket_index] - input_tensor\n"
            "            )\n"
            "        if not state.warm_start:\n"
            "            state.p_memory_dict.clear()\n"
            "            state.q_memory_dict.clear()\n"
            "\n"
            "        state.maybe_increase_iter(bucket)\n"
            "\n"
            "        return input_tensor\n"
        ),
    ),
    Fault(
        name="second rounding's error is kept without what was carried over from the step before",
        module="suites.compression.programs.quantized",
        old=(
            "    if shard_error is not None:\n"
            "        shard += shard_error\n"
            "\n"
            "    rounded, shard_scales = quantizer.quantize(shard)\n"
        ),
        new=(
            "    corrected = shard if shard_error is None else shard + shard_error\n"
            "\n"
            "    rounded, shard_scales = quantizer.quantize(corrected)\n"
        ),
    ),
    Fault(
        name="PowerSGD counts buckets as iterations: it begins too early where there are several",
        module="torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook",
        old=("        if bucket.is_last():\n            self.iter += 1\n"),
        new="        self.iter += 1\n",
    ),
    Fault(
        name="feedback starts a step late",
        module="suites.compression.programs.quantized",
        old="state.feedback and state.steps >= state.start",
        new="state.feedback and state.steps > state.start",
    ),
    Fault(
        name="overflow haunts later steps",
        module="suites.compression.programs.quantized",
        old="state.errors[index] = own_error.nan_to_num_(0, 0, 0), shard_error.nan_to_num_(0, 0, 0)",
        new="state.errors[index] = own_error, shard_error",
    ),
    Fault(
        name="uncompressed tensors not averaged",
        module="torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook",
        old=("        uncompressed_tensors_memory = fut.value()[0].div_(world_size)\n        idx = 0"),
        new=("        uncompressed_tensors_memory = fut.value()[0]\n        idx = 0"),
    ),
    Fault(
        name="PowerSGD with another start on each rank",
        module=POWER,
        old="            torch.manual_seed(state.rng.randint(1_000_000_000))\n            for q in qs:",
        new="            torch.manual_seed(state.rng.randint(1_000_000_000) + dist.get_rank())\n"
        "            for q in qs:",
    ),
    Fault(
        name="an overflow that is kept as the largest float",
        module=QUANTIZED,
        old="own_error.nan_to_num_(0, 0, 0), shard_error.nan_to_num_(0, 0, 0)",
        new="own_error.nan_to_num_(0), shard_error.nan_to_num_(0)",
    ),
    Fault(
        name="each bucket counted as a step",
        module="suites.compression.programs.quantized",
        old="""    if bucket.is_last():
        state.steps += 1""",
        new="    state.steps += 1",
    ),
    Fault(
        name="PowerSGD's error taken of an alias of what it overwrites",
        module="torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook",
        old="""        input_tensor_cp = input_tensor.detach().clone()

    # Unflatten the input tensor into per-parameter tensors, for layer-wise compression.""",
        new="""        input_tensor_cp = input_tensor.detach()

    # Unflatten the input tensor into per-parameter tensors, for layer-wise compression.""",
    ),
    Fault(
        name="small gradients swallowed by the least scale",
        module="suites.compression.programs.quantized",
        old="scales = magnitude / magnitude.new_full((), largest)",
        new="scales = magnitude.clamp(min=1e-8) / largest",
    ),
    Fault(
        name="PowerSGD's uncompressed tensors all read from the first place",
        module="torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook",
        old="""                uncompressed_tensors_memory[idx : idx + tensor.numel()].view_as(tensor)
            )
            idx += tensor.numel()""",
        new="""                uncompressed_tensors_memory[idx : idx + tensor.numel()].view_as(tensor)
            )""",
    ),
    Fault(
        name="PowerSGD's random vectors from whatever seed a rank has",
        module="torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook",
        old="""            torch.manual_seed(state.rng.randint(1_000_000_000))
            for q in qs:""",
        new="            for q in qs:",
    ),
    Fault(
        name="PowerSGD unpacks what it does not compress at wrong offsets",
        module="torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook",
        old="            idx += tensor.numel()\n",
        new="            idx = tensor.numel()\n",
    ),
    Fault(
        name="a block whose scale is rounded to zero, though it has a number",
        module="suites.compression.programs.quantized",
        old="torch.where(scales == 0, 1.0, scales)",
        new="torch.where(magnitude == 0, 1.0, scales)",
    ),
    Fault(
        name="a hook that is called float8 and has 8 whole bits",
        module="suites.compression.programs.averaging",
        old='"float8": (quantized_hook, lambda: Quantized(FLOAT8)),',
        new='"float8": (quantized_hook, lambda: Quantized(INT8)),',
    ),
    Fault(
        name="gradients that are all positive",
        module="suites.compression.programs.averaging",
        old=".mul_(2).sub_(1) for _ in range(layers)]",
        new=" for _ in range(layers)]",
    ),
    Fault(
        name="gradients that are alike in all layers",
        module="suites.compression.programs.averaging",
        old="generator=generator).mul_(2).sub_(1) for _ in range(layers)]",
        new="generator=generator).mul_(2).sub_(1)] * layers",
    ),
    Fault(
        name="PowerSGD of one column, however many are asked for",
        module="suites.compression.programs.averaging",
        old="matrix_approximation_rank=rank,",
        new="matrix_approximation_rank=1,",
    ),
    Fault(
        name="PowerSGD whose matrices share the first one's P",
        module="torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook",
        old="        p_idx += batch_size * n * matrix_approximation_rank\n",
        new="",
    ),
    Fault(
        name="PowerSGD that begins each step with random columns",
        module="torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook",
        old="    need_randomize_qs = False\n",
        new="    need_randomize_qs = True\n",
    ),
    Fault(
        name="gradients that are copied out of the buckets",
        module="suites.compression.programs.averaging",
        old="        gradient_as_bucket_view=True,\n        init_sync=False,  # param",
        new="        init_sync=False,  # param",
    ),
    Fault(
        name="a bound by the largest rank, not by the ranks' mean",
        module="suites.compression.programs.quantized",
        old="average, largest = blocks.mean(dim=0), blocks.amax(dim=2, keepdim=True).mean(dim=0)",
        new="average, largest = blocks.mean(dim=0), blocks.amax(dim=2, keepdim=True).amax(dim=0)",
    ),
    Fault(
        name="feedback a step early in the last bucket",
        module=QUANTIZED,
        old=(
            "    index, feedback = bucket.index(), state.feedback and state.steps >= state.start\n"
            "    if bucket.is_last():\n"
            "        state.steps += 1\n"
        ),
        new=(
            "    if bucket.is_last():\n"
            "        state.steps += 1\n"
            "    index, feedback = bucket.index(), state.feedback and state.steps >= state.start\n"
        ),
    ),
    Fault(
        name="one scale for all blocks",
        module=QUANTIZED,
        old="    magnitude = blocks.abs().amax(dim=1, keepdim=True)\n",
        new="    magnitude = blocks.abs().amax().expand(len(blocks), 1)\n",
    ),
    Fault(
        name="an overflow that stays in the error of the mean",
        module=QUANTIZED,
        old="state.errors[index] = own_error.nan_to_num_(0, 0, 0), shard_error.nan_to_num_(0, 0, 0)",
        new="state.errors[index] = own_error.nan_to_num_(0, 0, 0), shard_error",
    ),
    Fault(
        name="PowerSGD errors that are added up",
        module=POWER,
        old=(
            "            state.error_dict[bucket_index] = input_tensor_cp - input_tensor\n"
            "        if not state.warm_start:\n"
        ),
        new=(
            "            state.error_dict[bucket_index] += input_tensor_cp - input_tensor\n"
            "        if not state.warm_start:\n"
        ),
    ),
    Fault(
        name="PowerSGD forgets older errors",
        module=POWER,
        old=(
            "    if state.use_error_feedback:\n"
            "        if bucket_index in state.error_dict:\n"
            "            input_tensor.add_(state.error_dict[bucket_index])\n"
            "        else:\n"
            "            logger.info(\n"
            '                "A zero tensor of length %s that represents local error is created.",\n'
            "                total_length,\n"
            "            )\n"
            "            state.error_dict[bucket_index] = torch.zeros(\n"
            "                total_length, device=device, dtype=dtype\n"
            "            )\n"
            "\n"
            "        # Keep a copy of the input tensor,\n"
            "        # so that we can compute the local error caused by compression later,\n"
            "        # by comparing this copy and the input tensor updated after decompression.\n"
            "        input_tensor_cp = input_tensor.detach().clone()\n"
            "\n"
            "    # Unflatten the input tensor into per-parameter tensors, for layer-wise compression.\n"
        ),
        new=(
            "    if state.use_error_feedback:\n"
            "        # Keep a copy of the input tensor,\n"
            "        # so that we can compute the local error caused by compression later,\n"
            "        # by comparing this copy and the input tensor updated after decompression.\n"
            "        input_tensor_cp = input_tensor.detach().clone()\n"
            "        if bucket_index in state.error_dict:\n"
            "            input_tensor.add_(state.error_dict[bucket_index])\n"
            "        else:\n"
            "            logger.info(\n"
            '                "A zero tensor of length %s that represents local error is created.",\n'
            "                total_length,\n"
            "            )\n"
            "            state.error_dict[bucket_index] = torch.zeros(\n"
            "                total_length, device=device, dtype=dtype\n"
            "            )\n"
            "\n"
            "    # Unflatten the input tensor into per-parameter tensors, for layer-wise compression.\n"
        ),
    ),
    # What hooks.py uses.
    Fault(
        name="local averages over all ranks",
        module="torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook",
        old="    return default._allreduce_fut(state.subgroup, input_tensor)",
        new="    return default._allreduce_fut(global_group_to_use, input_tensor)",
    ),
    Fault(
        name="local averages that begin with another bucket than the last",
        module="torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook",
        old="        if bucket.is_last():\n            self.iter += 1",
        new="        if not bucket.is_last():\n            self.iter += 1",
    ),
)
