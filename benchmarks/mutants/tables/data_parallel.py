"""Faults of the subject data_parallel."""

from __future__ import annotations

from benchmarks.mutants.fault import Fault

REPLICAS = "suites.data_parallel.programs.replicas"
TRAINING = "suites.data_parallel.programs.training"
RACING = "suites.data_parallel.programs.racing"
GRAPHS = "suites.data_parallel.programs.graphs"
WRAPPER = "torch.nn.parallel.distributed"

FAULTS: tuple[Fault, ...] = (
    # What averages gradients.
    Fault(
        name="no all-reduce, and gradients divided all the same",
        module=REPLICAS,
        old="    all_reduce(ctx, gradients)\n    # A future",
        new="    # A future",
    ),
    Fault(name="a sum for the mean", module=REPLICAS, old="    gradients.div_(ctx.world_size)\n", new=""),
    Fault(
        name="a mean that is rounded to bfloat16",
        module=REPLICAS,
        old="    gradients.div_(ctx.world_size)\n",
        new="    gradients.div_(ctx.world_size)\n    gradients.copy_(gradients.bfloat16())\n",
    ),
    Fault(
        name="a mean that goes through float32",
        module=REPLICAS,
        old="    gradients.div_(ctx.world_size)\n",
        new="    gradients.div_(ctx.world_size)\n    gradients.copy_(gradients.float())\n",
    ),
    Fault(
        name="a bucket's first gradient only",
        module=REPLICAS,
        old="return lambda ctx, bucket: _average(ctx, bucket.buffer(), all_reduce)",
        new="return lambda ctx, bucket: (_average(ctx, bucket.gradients()[0].view(-1), all_reduce), "
        "_done(bucket.buffer()))[1]\n\n\ndef _done(buffer: torch.Tensor):\n    done = torch.futures.Future()\n"
        "    done.set_result(buffer)\n    return done",
    ),
    Fault(
        name="no_sync around the last microbatch too",
        module="suites.shared.training",
        old="with accumulating() if index + 1 < len(x) else contextlib.nullcontext():",
        new="with accumulating():",
    ),
    Fault(
        name="gradients that are reduced for every microbatch",
        module=REPLICAS,
        old="        return wrapped.no_sync() if skipped else contextlib.nullcontext()",
        new="        return contextlib.nullcontext()",
    ),
    Fault(
        name="microbatches of which the first alone counts",
        module="suites.shared.training",
        old="                output.backward(microbatch_grad.to(output.dtype))",
        new="                output.backward(microbatch_grad.to(output.dtype) * (index == 0))",
    ),
    Fault(
        name="parameters that each rank begins with as they are",
        module=REPLICAS,
        old="    wrapped = DistributedDataParallel(module, find_unused_parameters=bool(skip), **options)",
        new="    wrapped = DistributedDataParallel(\n"
        "        module, find_unused_parameters=bool(skip), **{**options, 'init_sync': False}\n    )",
    ),
    Fault(
        name="the first batch at every step",
        module="suites.shared.training",
        old="    coming = enumerate(itertools.cycle(batches))\n    names",
        new="    coming = enumerate(itertools.cycle(batches[:1]))\n    names",
    ),
    Fault(
        name="gradients that add up over the steps",
        module="suites.shared.training",
        old="        optimizer.zero_grad()\n        outputs = []",
        new="        outputs = []",
    ),
    # torch's wrapper.
    Fault(
        name="parameters of rank 0 that never reach the others",
        module=WRAPPER,
        old="        if init_sync:\n            # Verify model equivalence.\n",
        new="        if False:\n",
    ),
    Fault(
        name="buffers that are never broadcast",
        module=WRAPPER,
        old="    def _sync_buffers(self):\n",
        new="    def _sync_buffers(self):\n        return\n",
    ),
    Fault(
        name="join that divides by the initial world size, always",
        module=REPLICAS,
        old="with module.join(divide_by_initial_world_size=divide_by_initial_world_size):",
        new="with module.join(divide_by_initial_world_size=True):",
    ),
    Fault(
        name="join that divides by those that still have batches, always",
        module=REPLICAS,
        old="with module.join(divide_by_initial_world_size=divide_by_initial_world_size):",
        new="with module.join(divide_by_initial_world_size=False):",
    ),
    # The ring.
    Fault(
        name="a ring whose second half begins with a chunk that is not complete",
        module=REPLICAS,
        old="_all_gather_hops(ctx, _chunks(ctx, tensor), first=ctx.rank + 1)",
        new="_all_gather_hops(ctx, _chunks(ctx, tensor), first=ctx.rank)",
    ),
    Fault(
        name="a ring without its second half",
        module=REPLICAS,
        old="    _all_gather_hops(ctx, _chunks(ctx, tensor), first=ctx.rank + 1)\n",
        new="",
    ),
    Fault(
        name="a ring that broadcasts besides",
        module=REPLICAS,
        old="    _all_gather_hops(ctx, _chunks(ctx, tensor), first=ctx.rank + 1)\n",
        new="    _all_gather_hops(ctx, _chunks(ctx, tensor), first=ctx.rank + 1)\n    dist.broadcast(tensor, 0)\n",
    ),
    Fault(
        name="a ring that adds up in bfloat16",
        module=REPLICAS,
        old="        preceding += received[: len(preceding)]\n",
        new="        preceding.copy_((preceding.bfloat16() + received[: len(preceding)].bfloat16()))\n",
    ),
    Fault(
        name="a ring that adds whole numbers as floats",
        module=REPLICAS,
        old="        preceding += received[: len(preceding)]\n",
        new="        preceding.copy_((preceding.double() + received[: len(preceding)].double()))\n",
    ),
    Fault(
        name="a ring of one hop too few",
        module=REPLICAS,
        old="    received = torch.empty_like(chunks[0])  # no chunk is larger than the first\n"
        "    for hop in range(ctx.world_size - 1):",
        new="    received = torch.empty_like(chunks[0])\n    for hop in range(max(1, ctx.world_size - 2)):",
    ),
    Fault(
        name="a ring that loses what lies past element 65536",
        module=REPLICAS,
        old="    return tensor.tensor_split(ctx.world_size)\n",
        new="    return tensor[:65536].tensor_split(ctx.world_size)\n",
    ),
    # Clipping.
    Fault(
        name="gradients that are clipped before they are averaged",
        module=TRAINING,
        old="        wrapped(x).square().mean().backward()\n        norm = nn.utils",
        new="        with wrapped.no_sync():\n            wrapped(x).square().mean().backward()\n"
        "        norm = nn.utils.clip_grad_norm_(wrapped.parameters(), MAX_NORM)\n"
        "        for parameter in wrapped.parameters():\n"
        "            torch.distributed.all_reduce(parameter.grad)\n            parameter.grad /= ctx.world_size\n"
        "        0 and nn.utils",
    ),
    Fault(
        name="each parameter clipped by itself",
        module=TRAINING,
        old="        norm = nn.utils.clip_grad_norm_(wrapped.parameters(), max_norm)\n",
        new="        norm = [nn.utils.clip_grad_norm_([one], max_norm) for one in wrapped.parameters()][0]\n",
    ),
    Fault(
        name="clipping that leaves biases as they are",
        module=TRAINING,
        old="        norm = nn.utils.clip_grad_norm_(wrapped.parameters(), max_norm)\n",
        new="        norm = nn.utils.clip_grad_norm_([p for p in wrapped.parameters() if p.dim() > 1], max_norm)\n",
    ),
    Fault(
        name="a norm of sums of magnitudes",
        module=TRAINING,
        old="        norm = nn.utils.clip_grad_norm_(wrapped.parameters(), max_norm)\n",
        new="        norm = nn.utils.clip_grad_norm_(wrapped.parameters(), max_norm, norm_type=1.0)\n",
    ),
    # Tokens.
    Fault(
        name="a mean of means over ranks of unequal counts",
        module=TRAINING,
        old="        torch.distributed.all_reduce(valid)\n",
        new="        valid = valid * ctx.world_size\n",
    ),
    Fault(
        name="a loss that is divided by the number of ranks twice",
        module=TRAINING,
        old="(total * ctx.world_size / valid).backward()",
        new="(total / valid).backward()",
    ),
    Fault(
        name="a mean over rows that are ignored, too",
        module=TRAINING,
        old="valid = classes.ne(IGNORED).sum()",
        new="valid = torch.tensor(classes.numel(), device=ctx.device)",
    ),
    # The scaler.
    Fault(
        name="gradients that are clipped before they are unscaled",
        module=TRAINING,
        old="""        self.scaler.unscale_(self.optimizer)
        nn.utils.clip_grad_norm_(self.wrapped.parameters(), MAX_NORM)
""",
        new="""        nn.utils.clip_grad_norm_(self.wrapped.parameters(), MAX_NORM)
        self.scaler.unscale_(self.optimizer)
""",
    ),
    Fault(
        name="a scale that no overflow lowers",
        module=TRAINING,
        old="        self.scaler.update()\n",
        new="",
    ),
    Fault(
        name="a rank that decides for itself whether to skip the step",
        module=TRAINING,
        old="        self.scaler.step(self.optimizer)\n        self.scaler.update()\n",
        new="        if loss.isfinite():\n            for parameter in self.wrapped.parameters():\n"
        "                parameter.grad.nan_to_num_(0, 0, 0)\n            self.optimizer.step()\n",
    ),
    Fault(
        name="an optimizer that steps on what overflowed",
        module=TRAINING,
        old="        self.scaler.step(self.optimizer)\n",
        new="        self.optimizer.step()\n",
    ),
    # Buffers and dropout.
    Fault(
        name="running statistics that stay each rank's own",
        module=TRAINING,
        old="""fill_(ctx.rank)  # ranks start with buffers of their own
    wrapped = DistributedDataParallel(network)
""",
        new="""fill_(ctx.rank)
    wrapped = DistributedDataParallel(network, broadcast_buffers=False)
""",
    ),
    Fault(
        name="one mask of dropout for all ranks",
        module=TRAINING,
        old="torch.manual_seed(course.seed * 64 + ctx.rank)",
        new="torch.manual_seed(course.seed * 64)",
    ),
    Fault(
        name="one mask of dropout for all steps",
        module=TRAINING,
        old="        optimizer.zero_grad()\n        wrapped(x).square().mean().backward()\n        optimizer.step()\n"
        "        told |= _told(number, network, mask=masks[-1])",
        new="        optimizer.zero_grad()\n        torch.manual_seed(course.seed * 64 + ctx.rank)\n"
        "        wrapped(x).square().mean().backward()\n        optimizer.step()\n"
        "        told |= _told(number, network, mask=masks[-1])",
    ),
    Fault(
        name="dropout that scales nothing up",
        module=TRAINING,
        old="nn.Sequential(linear, tanh, nn.Dropout(DROPPED), out)",
        new="nn.Sequential(linear, tanh, type('Own', (nn.Dropout,), {'forward': lambda self, x: "
        "nn.Dropout.forward(self, x) * 0.5})(DROPPED), out)",
    ),
    Fault(
        name="a compiled step that reduces nothing",
        module=TRAINING,
        old="    forward = torch.compile(wrapped, backend=backend)\n",
        new="    forward = torch.compile(network, backend=backend)\n",
    ),
    Fault(
        name="padding is taken to be class 0 when valid rows are counted",
        module="suites.data_parallel.programs.training",
        old="valid = classes.ne(IGNORED).sum()",
        new="valid = classes.ne(0).sum()",
    ),
    Fault(
        name="final model after join is the highest rank's, not the last joiner's",
        module="torch.nn.parallel.distributed",
        old=("            self._distributed_rank, is_last_joiner\n        )\n        _sync_module_states("),
        new=("            self._distributed_rank, True\n        )\n        _sync_module_states("),
    ),
    Fault(
        name="ring adds what it received rounded to float32",
        module="suites.data_parallel.programs.replicas",
        old="preceding += received[: len(preceding)]",
        new="preceding += received[: len(preceding)].float().to(preceding.dtype)",
    ),
    Fault(
        name="after uneven inputs the highest rank's parameters win, though others trained longer",
        module="torch.nn.parallel.distributed",
        old="            self._distributed_rank, is_last_joiner\n",
        new="            self._distributed_rank, True\n",
    ),
    Fault(
        name="dropout's generator is seeded anew at each step: the same mask every time",
        module="suites.data_parallel.programs.training",
        old=(
            "    network[2].register_forward_hook(lambda module, inputs, output: masks.append"
            "(output.ne(0).double()))\n"
            "    told: Tensors = {}\n"
            "    for number in range(course.steps):\n"
        ),
        new=(
            "    network[2].register_forward_hook(lambda module, inputs, output: masks.append"
            "(output.ne(0).double()))\n"
            "    told: Tensors = {}\n"
            "    for number in range(course.steps):\n"
            "        torch.manual_seed(course.seed * 64 + ctx.rank)\n"
        ),
    ),
    Fault(
        name="clipping scales gradients up whose norm is below the limit",
        module="torch.nn.utils.clip_grad",
        old="    clip_coef_clamped = torch.clamp(clip_coef, max=1.0)\n",
        new="    clip_coef_clamped = clip_coef\n",
    ),
    Fault(
        name="static graph never skips reductions",
        module="suites.data_parallel.programs.replicas",
        old="        skipped, recorded = recorded and no_sync, True\n",
        new="        skipped = recorded and no_sync\n",
    ),
    Fault(
        name="buffers broadcast only at the start",
        module="suites.data_parallel.programs.training",
        old=(
            '        network.get_buffer("1.running_mean").fill_(ctx.rank)  # ranks start with'
            " buffers of their own\n"
            "    wrapped = DistributedDataParallel(network)"
        ),
        new=(
            '        network.get_buffer("1.running_mean").fill_(ctx.rank)  # ranks start with'
            " buffers of their own\n"
            "    wrapped = DistributedDataParallel(network, broadcast_buffers=False)"
        ),
    ),
    Fault(
        name="early joiner takes itself for the last",
        module="torch.distributed.algorithms.join",
        old=("                is_last_joiner = False\n                i += 1"),
        new="                i += 1",
    ),
    # What is raced.
    Fault(
        name="staged replicas that compute on the batch that is on its way",
        module=RACING,
        old="        yield places[number % 2]\n",
        new="        yield places[(number + 1) % 2]\n",
    ),
    Fault(
        name="a staged batch that is never replaced",
        module=RACING,
        old="copy_(batches[(number + 1) % BATCHES], non_blocking=True)",
        new="copy_(batches[0], non_blocking=True)",
    ),
    Fault(
        name="a flat all-reduce that leaves the sum",
        module=RACING,
        old="        flat /= ctx.world_size\n",
        new="        pass\n",
    ),
    Fault(
        name="flat gradients that add up over the steps",
        module=RACING,
        old="        flat.zero_()\n",
        new="",
    ),
    Fault(
        name="DataParallel that gets rank 0's rows as often as there are ranks",
        module=RACING,
        old="[torch.cat([batch_of(ctx, sizes, rank, number) for rank in range(ctx.world_size)])",
        new="[torch.cat([batch_of(ctx, sizes, 0, number) for rank in range(ctx.world_size)])",
    ),
    # The step that is captured.
    Fault(
        name="a batch that is never copied to where the step reads it",
        module=GRAPHS,
        old="        self._x.copy_(self._course.batch(self._ctx.rank, number)[0])\n",
        new="        if not self.taken:\n            self._x.copy_(self._course.batch(self._ctx.rank, number)[0])\n",
    ),
    Fault(
        name="a batch in a tensor of its own, which a graph does not read",
        gpus=True,
        module=GRAPHS,
        old="        self._x.copy_(self._course.batch(self._ctx.rank, number)[0])\n",
        new="        self._x = self._course.batch(self._ctx.rank, number)[0].to(self._ctx.device)\n",
    ),
    Fault(
        name="a bucket that adds up over the steps",
        module=GRAPHS,
        old="        self._bucket.zero_()\n",
        new="",
    ),
    Fault(
        name="a bucket that is emptied by Python alone, and not by the graph",
        gpus=True,
        module=GRAPHS,
        old="        self._bucket.zero_()\n",
        new="        if not (self._x.is_cuda and torch.cuda.is_current_stream_capturing()):\n"
        "            self._bucket.zero_()\n",
    ),
    Fault(
        name="the first learning rate at every step",
        module=GRAPHS,
        old="        self._rate.fill_(rate)\n",
        new="        if not self.taken:\n            self._rate.fill_(rate)\n",
    ),
    Fault(
        name="a learning rate that a scheduler sets as a number, which the graph has baked in",
        gpus=True,
        module=GRAPHS,
        old="        self._rate.fill_(rate)\n",
        new='        self._optimizer.param_groups[0]["lr"] = rate\n',
    ),
    Fault(
        name="sums that are left out of the graph",
        gpus=True,
        module=GRAPHS,
        old="        for work in [dist.all_reduce(tensor, async_op=True) for tensor in summed]:\n",
        new="        captures = self._x.is_cuda and torch.cuda.is_current_stream_capturing()\n"
        "        for work in [] if captures else [dist.all_reduce(tensor, async_op=True) for tensor in summed]:\n",
    ),
    Fault(
        name="a step that waits for no sum",
        module=GRAPHS,
        old="            work.wait()\n",
        new="            pass\n",
    ),
    Fault(
        name="a step that waits for the gradients and not for the loss",
        gpus=True,
        module=GRAPHS,
        old="            work.wait()\n",
        new="            work.wait()\n            break\n",
    ),
    Fault(
        name="gradients that stay sums",
        module=GRAPHS,
        old="        for tensor in summed:\n            tensor /= self._ctx.world_size\n",
        new="        self._loss /= self._ctx.world_size\n",
    ),
    Fault(
        name="parameters that warm-ups have trained",
        module=GRAPHS,
        old="            value.copy_(self._initial[name])\n",
        new="            pass\n",
    ),
    Fault(
        name="moments of Adam that warm-ups have filled",
        module=GRAPHS,
        old="            for value in state.values():\n                value.zero_()\n",
        new='            state["step"].zero_()\n',
    ),
    Fault(
        name="Adam's number of steps that counts warm-ups",
        module=GRAPHS,
        old="            for value in state.values():\n                value.zero_()\n",
        new='            state["exp_avg"].zero_()\n            state["exp_avg_sq"].zero_()\n',
    ),
    Fault(
        name="a rank without valid rows that counts as one row",
        module=TRAINING,
        old="valid = classes.ne(IGNORED).sum()\n",
        new="valid = classes.ne(IGNORED).sum().clamp(min=1)\n",
    ),
    Fault(
        name="a norm of the gradients of the last dtype alone",
        module="torch.nn.utils.clip_grad",
        old="norms.extend(torch._foreach_norm(device_tensors, norm_type))",
        new="norms = list(torch._foreach_norm(device_tensors, norm_type))",
    ),
    Fault(
        name="masks whose seed is the sum of rank and step",
        module=TRAINING,
        old="    network[2].register_forward_hook(",
        new="    network[2].register_forward_pre_hook(\n"
        "        lambda module, inputs: torch.manual_seed(course.seed * 64 + ctx.rank + "
        "len(masks)) and None\n    )\n    network[2].register_forward_hook(",
    ),
    Fault(
        name="a loss in the network's 16 bits",
        module=RACING,
        old="functional.mse_loss(output.float(), target.expand_as(output))",
        new="functional.mse_loss(output, target.to(output.dtype).expand_as(output))",
    ),
    Fault(
        name="batches that are alike on all ranks",
        module="suites.data_parallel.programs.racing",
        old="manual_seed(1000 * rank + number)",
        new="manual_seed(number)",
    ),
    Fault(
        name="two places for batches that are one tensor",
        module="suites.data_parallel.programs.racing",
        old="places = [batches[0].to(ctx.device, copy=True) for _ in range(2)]",
        new="places = [batches[0].to(ctx.device, copy=True)] * 2",
    ),
    Fault(
        name="a mean over the ranks that still have batches, asked for and not taken",
        module="torch.nn.parallel.distributed",
        old="                self._divide_by_initial_world_size,  # type: ignore[arg-type]",
        new="                True,",
    ),
    Fault(
        name="a scaler that forgets, when it is loaded, how many steps went well",
        module="torch.amp.grad_scaler",
        old="""        self._init_growth_tracker = cast(int, state_dict["_growth_tracker"])
        if self._growth_tracker is not None:
            self._growth_tracker.fill_(state_dict["_growth_tracker"])""",
        new="""        if self._growth_tracker is not None:
            self._growth_tracker.fill_(0)""",
    ),
    Fault(
        name="staged batches that are copied in the first two steps alone",
        module=RACING,
        old="        with torch.cuda.stream(side):  # of None: the current one\n            places",
        new="        with torch.cuda.stream(side):  # of None: the current one\n            if number < 2:\n"
        "                places",
    ),
    Fault(
        name="operations of the first layer's input gradient, which nobody computes",
        module=RACING,
        old="(3 * self.layers - 1)",
        new="3 * self.layers",
    ),
    Fault(
        name="the bytes of one layer's gradients for all",
        module=RACING,
        old="return self.layers * self.width**2 * self.dtype.itemsize",
        new="return self.width**2 * self.dtype.itemsize",
    ),
    Fault(
        name="a ring of elements that do not lie side by side",
        module=REPLICAS,
        old="if tensor.dim() != 1 or not tensor.is_contiguous():",
        new="if tensor.dim() != 1:",
    ),
    Fault(
        name="one learning rate for all steps",
        module="suites.shared.problems",
        old="return RATES[step % self.steps]",
        new="return RATES[0]",
    ),
    Fault(
        name="a problem whose batches are alike on all ranks",
        module="suites.shared.problems",
        old="seed = self.seed * 1024 + 512 + rank * 2",
        new="seed = self.seed * 1024 + 512",
    ),
    Fault(
        name="ranks that all start with the first one's parameters",
        module="suites.shared.problems",
        old="self._draw((sum(sizes),), self.seed * 1024 + rank)",
        new="self._draw((sum(sizes),), self.seed * 1024)",
    ),
    Fault(
        name="rows that are alike on all ranks",
        module="suites.shared.course",
        old="manual_seed((self.seed * 16 + step) * 16 + rank + 1)",
        new="manual_seed((self.seed * 16 + step) * 16 + 1)",
    ),
    Fault(
        name="microbatches are accumulated without messages though no_sync is off",
        module="suites.data_parallel.programs.replicas",
        old="skipped, recorded = recorded and no_sync, True",
        new="skipped, recorded = recorded, True",
    ),
    Fault(
        name="staged batches of which the third never comes",
        module=RACING,
        old="batches[(number + 1) % BATCHES]",
        new="batches[(number + 1) % len(places)]",
    ),
    Fault(
        name="a restart that keeps Adam's number of steps",
        module=GRAPHS,
        old=("            for value in state.values():\n                value.zero_()\n"),
        new=('            for value in (state["exp_avg"], state["exp_avg_sq"]):\n                value.zero_()\n'),
    ),
    Fault(
        name="Adam's number of steps survives the restart",
        module=GRAPHS,
        old=("            for value in state.values():\n                value.zero_()\n"),
        new=(
            "            for value in state.values():\n"
            "                if value.dim():\n"
            "                    value.zero_()\n"
        ),
    ),
    Fault(
        name="join always divides by the initial world size",
        module=WRAPPER,
        old="        self.ddp._divide_by_initial_world_size = divide_by_initial_world_size\n",
        new="        self.ddp._divide_by_initial_world_size = True\n",
    ),
    # What settings.py uses.
    Fault(
        name="buffers of the last rank",
        module="torch.nn.parallel.distributed",
        old="                authoritative_rank = 0\n",
        new="                authoritative_rank = dist.get_world_size() - 1\n",
    ),
    Fault(
        name="the first that has no more batches stops nobody",
        module="torch.distributed.algorithms.join",
        old="        if join_config.throw_on_early_termination:\n",
        new="        if False:\n",
    ),
)
