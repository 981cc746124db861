"""Faults of the subject pipeline_parallel."""

from __future__ import annotations

from benchmarks.mutants.fault import Fault

STAGES = "suites.pipeline_parallel.programs.stages"
TRAINING = "suites.pipeline_parallel.programs.training"
RACING = "suites.pipeline_parallel.programs.racing"
LINKED = "suites.pipeline_parallel.programs.linked"
STAGE = "torch.distributed.pipelining.stage"
SCHEDULES = "torch.distributed.pipelining.schedules"
BACKWARD = "torch.distributed.pipelining._backward"
MICROBATCH = "torch.distributed.pipelining.microbatch"

SENT_FORWARD = "                send_tensor = to_local_if_dtensor(out, detach=True)\n"
SENT_BACKWARD = "                send_tensor = to_local_if_dtensor(grad)\n"

FAULTS: tuple[Fault, ...] = (
    # What goes from stage to stage.
    Fault(
        name="activations that go to the next stage through float32",
        module=STAGE,
        old=SENT_FORWARD,
        new=SENT_FORWARD + "                send_tensor = send_tensor.float().to(out.dtype)\n",
    ),
    Fault(
        name="gradients that go to the stage before through float32",
        module=STAGE,
        old=SENT_BACKWARD,
        new=SENT_BACKWARD + "                send_tensor = send_tensor.float().to(grad.dtype)\n",
    ),
    Fault(
        name="activations that are passed on within a rank through float32",
        module=STAGE,
        old="            info.buffer = to_local_if_dtensor(tensor, detach=True)\n",
        new="            info.buffer = to_local_if_dtensor(tensor, detach=True).float().to(tensor.dtype)\n",
    ),
    Fault(
        name="activations that lose what lies past element 65536",
        module=STAGE,
        old=SENT_FORWARD,
        new=SENT_FORWARD
        + "                send_tensor = send_tensor.clone()\n                send_tensor.view(-1)[65536:] = 0\n",
    ),
    Fault(
        name="gradients that lose what lies past element 4096",
        module=STAGE,
        old=SENT_BACKWARD,
        new=SENT_BACKWARD
        + "                send_tensor = send_tensor.clone()\n                send_tensor.view(-1)[4096:] = 0\n",
    ),
    Fault(
        name="several outputs of a stage that are sent in the wrong order",
        module=STAGE,
        old="        for idx, out in enumerate(output_tuple):\n            dst_stages",
        new="        for idx, out in enumerate(reversed(output_tuple)):\n            dst_stages",
    ),
    Fault(
        name="only the first of several outputs gets its gradient",
        module=STAGE,
        old="                    grad = info.buffer\n                grads.append(grad)",
        new="                    grad = info.buffer if i == 0 else torch.zeros_like(info.buffer)\n"
        "                grads.append(grad)",
    ),
    Fault(
        name="what was received for the first microbatch is the input of all",
        module=STAGE,
        old="recv_infos = self.args_recv_info[fwd_chunk_id]",
        new="recv_infos = self.args_recv_info[0]",
    ),
    Fault(
        name="the gradient that was received for the microbatch before",
        module=STAGE,
        old="recv_infos = self.grad_recv_info[bwd_chunk_id]\n\n        grads: list",
        new="recv_infos = self.grad_recv_info[max(0, bwd_chunk_id - 1)]\n\n        grads: list",
    ),
    # What is left of an earlier step.
    Fault(
        name="the batch of the first step in every step",
        module=SCHEDULES,
        old="",
        new="""
_split_anew = _PipelineSchedule._split_inputs


def _split_once(self, args, kwargs=None):
    if not hasattr(self, "_kept_split"):
        self._kept_split = _split_anew(self, args, kwargs)
    return self._kept_split


_PipelineSchedule._split_inputs = _split_once
""",
    ),
    Fault(
        name="the targets of the first step in every step",
        module=SCHEDULES,
        old="            loss = self._compute_loss(output, target_mbs[mb_index], loss_kwargs)  # type: ignore[index]",
        new="            self._kept_targets = getattr(self, '_kept_targets', None) or target_mbs\n"
        "            loss = self._compute_loss(output, self._kept_targets[mb_index], loss_kwargs)",
    ),
    Fault(
        name="no step trains after an evaluation",
        module=SCHEDULES,
        old="            self._has_backward = original_has_backward",
        new="            pass",
    ),
    Fault(
        name="gradients that a step adds to those of the step before",
        module=TRAINING,
        old="self.optimizer.zero_grad()",
        new="pass",
    ),
    Fault(
        name="an optimizer that has the parameters of one stage of the rank only",
        module=TRAINING,
        old="given = list(self.parameters.values())",
        new="given = list(next(iter(self.modules.values())).parameters())",
    ),
    # Microbatches.
    Fault(
        name="microbatches that take every so manieth row",
        module=MICROBATCH,
        old="        chunk_tensors = torch.tensor_split(tensor, num_chunks, spec.split_dim)",
        new="        chunk_tensors = [tensor[index::num_chunks] for index in range(num_chunks)]",
    ),
    Fault(
        name="outputs that are put together in reverse order",
        module=STAGE,
        old="            self.output_chunks.append(output)",
        new="            self.output_chunks.insert(0, output)",
    ),
    Fault(
        name="losses of the microbatches in reverse order",
        module=SCHEDULES,
        old="            losses.extend(self._internal_losses)",
        new="            losses.extend(self._internal_losses[::-1])",
    ),
    Fault(
        name="targets of other microbatches",
        module=TRAINING,
        old='{"target": batch.target.to(self.device), "losses"',
        new='{"target": batch.target.roll(2, 0).to(self.device), "losses"',
    ),
    Fault(
        name="keyword arguments of the first microbatch for all",
        module=SCHEDULES,
        old="                    kwarg_mbs[mb_index],  # type: ignore[index]",
        new="                    kwarg_mbs[0],",
    ),
    Fault(
        name="a forward that runs twice and counts in buffers twice",
        module=STAGE,
        old="        else:\n            out_val = self.submod(*args, **kwargs)",
        new="        else:\n            with torch.no_grad():\n                self.submod(*args, **kwargs)\n"
        "            out_val = self.submod(*args, **kwargs)",
    ),
    # Gradients and their scale.
    Fault(
        name="gradients that are not scaled",
        module=TRAINING,
        old='reduction == "mean" if scale_grads is None else scale_grads',
        new="False",
    ),
    Fault(
        name="gradients of biases that are not scaled",
        module=STAGE,
        old="                if p.grad is not None:\n                    p.grad.div_",
        new="                if p.grad is not None and p.dim() > 1:\n                    p.grad.div_",
    ),
    Fault(
        name="gradients that are divided by the number of stages",
        module=STAGE,
        old="p.grad.div_(grad_scale_factor)",
        new="p.grad.div_(self.num_stages)",
    ),
    Fault(
        name="gradients that are multiplied by a rounded factor",
        module=STAGE,
        old="p.grad.div_(grad_scale_factor)",
        new="p.grad.mul_(round(1 / grad_scale_factor, 3))",
    ),
    Fault(
        name="gradients that are divided though the losses are sums",
        module=SCHEDULES,
        old="                grad_scale_factor = self._n_microbatches if self.scale_grads else 1",
        new="                grad_scale_factor = self._n_microbatches",
    ),
    Fault(
        name="1F1B divides gradients though the losses are sums",
        module=SCHEDULES,
        old="        # Wait for the last backward send to finish\n        _wait_batch_p2p(send_work)\n\n"
        "        # Return losses if there is a container passed in\n"
        "        self._update_losses(self._stage, losses)\n\n"
        "        self._stage.perform_reduce_grad(self._n_microbatches if self.scale_grads else 1)",
        new="        _wait_batch_p2p(send_work)\n        self._update_losses(self._stage, losses)\n"
        "        self._stage.perform_reduce_grad(self._n_microbatches)",
    ),
    Fault(
        name="a loss that is computed in float32",
        module=SCHEDULES,
        old="        return self._loss_fn(output, target, **(loss_kwargs or {}))",
        new="        return self._loss_fn(output.float(), target.float(), **(loss_kwargs or {})).to(output.dtype)",
    ),
    Fault(
        name="weights' gradients that microbatches add up in float32",
        module=BACKWARD,
        old="                        weight.grad += dw",
        new="                        weight.grad = (weight.grad.float() + dw.float()).to(dw.dtype)",
    ),
    Fault(
        name="weights' gradients of the last microbatch only",
        module=BACKWARD,
        old="                        weight.grad += dw",
        new="                        weight.grad = dw",
    ),
    Fault(
        name="biases that share an operation with a weight and lose their gradient",
        module=BACKWARD,
        old='                existing["params"] = existing["params"].union(param_group["params"])',
        new='                existing["params"] = existing["params"]',
    ),
    # The model.
    Fault(
        name="stages without their bias",
        module=STAGES,
        old='linear.load_state_dict({"weight": weight, "bias": bias})',
        new='linear.load_state_dict({"weight": weight, "bias": bias * 0})',
    ),
    Fault(
        name="the layers of another stage",
        module=TRAINING,
        old="build(stages[index], ctx.device)",
        new="build(stages[index - 1], ctx.device)",
    ),
    # Order, and memory.
    Fault(
        name="a warm-up of one microbatch too many",
        module=SCHEDULES,
        old="            self._num_stages - self._stage.stage_index,\n",
        new="            self._num_stages - self._stage.stage_index + (self._stage.stage_index == 0),\n",
    ),
    Fault(
        name="backwards of breadth first in the order of the forwards",
        module=SCHEDULES,
        old="                for mb_index in reversed(range(self._n_microbatches))\n            )\n"
        "        return rank_ops",
        new="                for mb_index in range(self._n_microbatches)\n            )\n        return rank_ops",
    ),
    Fault(
        name="activations that are kept for a backward that never comes",
        module=STAGES,
        old="",
        new="""
_plain = sequential


def sequential(layers: Layers, device: torch.device) -> nn.Sequential:
    module = _plain(layers, device)
    kept: list[torch.Tensor] = []
    module.register_forward_hook(lambda module, inputs, output: kept.append(output.exp()))
    return module
""",
    ),
    # Accumulation and clipping.
    Fault(
        name="gradients of two batches that are divided by the microbatches of one",
        module=TRAINING,
        old="div_(microbatches * len(batches))",
        new="div_(microbatches)",
    ),
    Fault(
        name="accumulation that keeps the last batch only",
        module=TRAINING,
        old="    lasts = [trainer.backward(batch) for batch in batches]",
        new="    lasts = [(trainer.optimizer.zero_grad(), trainer.backward(batch))[1] for batch in batches]",
    ),
    Fault(
        name="clipping by the norm of the rank's own stages",
        module=TRAINING,
        old="    dist.all_reduce(total)\n",
        new="",
    ),
    Fault(
        name="clipping that adds up norms instead of their squares",
        module=TRAINING,
        old="    dist.all_reduce(total)\n    norm = total.sqrt()",
        new="    norm = total.sqrt()\n    dist.all_reduce(norm)",
    ),
    Fault(
        name="clipping by a norm without the biases",
        module=TRAINING,
        old="gradient.to(exact).square().sum() for gradient in gradients",
        new="gradient.to(exact).square().sum() for gradient in gradients if gradient.dim() > 1",
    ),
    Fault(
        name="clipping that scales small gradients up",
        module=TRAINING,
        old=".clamp(max=1.0)",
        new="",
    ),
    # Dropout and buffers.
    Fault(
        name="dropout that drops the same on every rank",
        module=LINKED,
        old="torch.manual_seed(ctx.rank)",
        new="torch.manual_seed(0)",
    ),
    Fault(
        name="dropout that drops the same in every microbatch",
        module=LINKED,
        old="        mask = functional.dropout",
        new="        torch.manual_seed(self.layers[0].weight.data_ptr())\n        mask = functional.dropout",
    ),
    Fault(
        name="dropout that does not keep the mean",
        module=LINKED,
        old="functional.dropout(torch.ones_like(x), DROPOUT)",
        new="functional.dropout(torch.ones_like(x), DROPOUT) * (1 - DROPOUT)",
    ),
    Fault(
        name="a first call for shapes that stays in the buffers",
        module=TRAINING,
        old="*(() if examples is None else examples(index))",
        new="",
    ),
    # Within a rank, and what is no number.
    Fault(
        name="activations of the first step that are passed on within a rank in every step",
        module=STAGE,
        old="            info.buffer = to_local_if_dtensor(tensor, detach=True)\n",
        new="            kept = self.__dict__.setdefault('_kept', {})\n"
        "            key = mb_index, info.input_name\n"
        "            info.buffer = kept.setdefault(key, to_local_if_dtensor(tensor, detach=True)).detach()\n",
    ),
    Fault(
        name="gradients of several outputs that change places within a rank",
        module=STAGE,
        old="zip(recv_infos, next_stage_bwd_outputs, strict=True)",
        new="zip(recv_infos, next_stage_bwd_outputs[::-1], strict=True)",
    ),
    Fault(
        name="what is no number becomes one between stages",
        module=STAGE,
        old=SENT_FORWARD,
        new=SENT_FORWARD + "                send_tensor = send_tensor.nan_to_num()\n",
    ),
    Fault(
        name="a weight that is used twice and counts too often",
        module=BACKWARD,
        old='            if len(param_group["intermediates"]) > 1:',
        new="            if False:",
    ),
    Fault(
        name="deferred weight gradients all get the last intermediate's",
        module="torch.distributed.pipelining._backward",
        old="lambda grad_outputs, sg=grads_tuple: sg",
        new="lambda grad_outputs: grads_tuple",
    ),
    Fault(
        name="1F1B's steady phase takes the keyword argument of the backward's microbatch",
        module="torch.distributed.pipelining.schedules",
        old=(
            "            # Now do the fwd\n"
            "            output = self._stage.forward_one_chunk(\n"
            "                fwd_mb_index,\n"
            "                arg_mbs[fwd_mb_index],\n"
            "                kwarg_mbs[fwd_mb_index],"
        ),
        new=(
            "            # Now do the fwd\n"
            "            output = self._stage.forward_one_chunk(\n"
            "                fwd_mb_index,\n"
            "                arg_mbs[fwd_mb_index],\n"
            "                kwarg_mbs[bwd_mb_index],"
        ),
    ),
    Fault(
        name="clips the sum before it is made a mean",
        module="suites.pipeline_parallel.programs.training",
        old=(
            "    for parameter in trainer.parameters.values():\n"
            "        gradient_of(parameter).div_(microbatches * len(batches))\n"
            '    norm = {} if max_norm is None else {"norm": clip(trainer.parameters.values(), max_norm)}\n'
        ),
        new=(
            '    norm = {} if max_norm is None else {"norm": clip(trainer.parameters.values(), max_norm)}\n'
            "    for parameter in trainer.parameters.values():\n"
            "        gradient_of(parameter).div_(microbatches * len(batches))\n"
        ),
    ),
    Fault(
        name="zero bubble counts a weight twice that is used twice: two intermediates are not clamped",
        module="torch.distributed.pipelining._backward",
        old='            if len(param_group["intermediates"]) > 1:\n',
        new='            if len(param_group["intermediates"]) > 2:\n',
    ),
    Fault(
        name="zero bubble scales gradients after the last input backward, before the last weight backward",
        module="torch.distributed.pipelining.schedules",
        old="    return action_type in (W, B)\n",
        new="    return action_type in (I, B)\n",
    ),
    Fault(
        name="1F1B warms up with one microbatch too many and keeps its activations",
        module="torch.distributed.pipelining.schedules",
        old=("            self._n_microbatches,\n            self._num_stages - self._stage.stage_index,\n"),
        new=("            self._n_microbatches,\n            self._num_stages - self._stage.stage_index + 1,\n"),
    ),
    Fault(
        name="explicit scale grads false ignored",
        module="suites.pipeline_parallel.programs.training",
        old='scale_grads=reduction == "mean" if scale_grads is None else scale_grads',
        new='scale_grads=scale_grads or reduction == "mean"',
    ),
    Fault(
        name="weights used twice counted twice",
        module="torch.distributed.pipelining._backward",
        old=('            if len(param_group["intermediates"]) > 1:\n                for grads_tuple'),
        new=('            if len(param_group["intermediates"]) > 2:\n                for grads_tuple'),
    ),
    Fault(
        name="all stages warm up as long as the first",
        module="torch.distributed.pipelining.schedules",
        old=(
            "        warmup_chunks = min(\n"
            "            self._n_microbatches,\n"
            "            self._num_stages - self._stage.stage_index,\n"
            "        )"
        ),
        new=(
            "        warmup_chunks = min(\n            self._n_microbatches,\n            self._num_stages,\n        )"
        ),
    ),
    # What is raced and timed.
    Fault(
        name="a raced pipeline with half its microbatches",
        module=RACING,
        old="        count = model.microbatches\n",
        new="        count = model.microbatches // 2\n",
    ),
    Fault(
        name="a raced pipeline whose gradients are scaled twice",
        module=RACING,
        old="scale_grads=False",
        new="scale_grads=True",
    ),
    Fault(
        name="a raced step that begins with the gradients of the one before",
        module=RACING,
        old="            parameter.grad = None\n",
        new="            pass\n",
    ),
    Fault(
        name="a raced step whose norm is the rank's own",
        module=RACING,
        old="        dist.all_reduce(together)  # one message for both numbers\n",
        new="        dist.all_reduce(together[0])\n",
    ),
    Fault(
        name="raced ranks whose waits count as work",
        module=RACING,
        old="        begin = Moment(self.device)\n        output = super().forward_one_chunk(*args, **kwargs)\n",
        new=(
            "        taken = self._stopwatch.taken\n"
            "        begin = taken[-1][3] if taken else Moment(self.device)\n"
            "        output = super().forward_one_chunk(*args, **kwargs)\n"
        ),
    ),
    Fault(
        name="raced ranks whose span begins after the step",
        module=RACING,
        old="        begin = Moment(ctx.device)\n        pipeline.run()\n",
        new="        pipeline.run()\n        begin = Moment(ctx.device)\n",
    ),
    Fault(
        name="clipping of a rank's first stage alone",
        module=TRAINING,
        old="clip(trainer.parameters.values(), max_norm)",
        new="clip(trainer.modules[min(trainer.modules)].parameters(), max_norm)",
    ),
    Fault(
        name="a stopwatch that goes on from step to step",
        module=RACING,
        old="        stopwatch.taken.clear()\n",
        new="",
    ),
    Fault(
        name="a raced loss in the network's 16 bits",
        module=RACING,
        old="return functional.mse_loss(output.to(exact), target.to(exact))",
        new="return functional.mse_loss(output, target)",
    ),
    Fault(
        name="a step's span that begins before all ranks have come",
        module="suites.pipeline_parallel.programs.racing",
        old="""        dist.all_reduce(token)  # no rank leaves it before all have come
        begin = Moment(ctx.device)""",
        new="""        begin = Moment(ctx.device)
        dist.all_reduce(token)  # no rank leaves it before all have come""",
    ),
    Fault(
        name="a stage that keeps a microbatch's input and output after its backward",
        module="torch.distributed.pipelining.stage",
        old=") = self.fwd_cache.pop(bwd_chunk_id)",
        new=") = self.fwd_cache[bwd_chunk_id]",
    ),
    Fault(
        name="busy time without what zero-bubble schedules split",
        module="suites.pipeline_parallel.programs.racing",
        old="return sum(seconds for _, _, seconds in self.ops)",
        new='return sum(seconds for _, kind, seconds in self.ops if kind in ("F", "B"))',
    ),
    Fault(
        name="weights behind two paths whose gradients count twice in zero-bubble schedules",
        module="torch.distributed.pipelining._backward",
        old="""                for grads_tuple, intermediate in zip(
                    param_group["grads"],
                    param_group["intermediates"],
                    strict=True,
                ):
                    handles.append(
                        intermediate.register_prehook(
                            lambda grad_outputs, sg=grads_tuple: sg
                        )
                    )""",
        new="                pass",
    ),
    Fault(
        name="raced norms that 16 bits round before they are squared",
        module="suites.pipeline_parallel.programs.racing",
        old="squared_norm([value.grad for value in pipeline.parameters if value.grad is not None])",
        new="sum(value.grad.norm().to(exact).square() for value in pipeline.parameters if value.grad is not None)",
    ),
    Fault(
        name="clipping by squares that 16 bits add up",
        module="suites.pipeline_parallel.programs.training",
        old="gradient.to(exact).square().sum()",
        new="gradient.square().sum()",
    ),
    Fault(
        name="operations of one of a block's two matrices",
        module="suites.pipeline_parallel.programs.racing",
        old="return 6.0 * self.blocks * 2 * self.width",
        new="return 6.0 * self.blocks * self.width",
    ),
    Fault(
        name="raced targets that are the inputs",
        module="suites.pipeline_parallel.programs.racing",
        old="X_SEED, TARGET_SEED = 1, 2",
        new="X_SEED, TARGET_SEED = 1, 1",
    ),
    Fault(
        name="raced blocks that all begin with the same weights",
        module="suites.pipeline_parallel.programs.racing",
        old="manual_seed(self.seed + 3 + index)",
        new="manual_seed(self.seed + 3)",
    ),
    Fault(
        name="a promised bubble whose ramp is that of two ranks",
        module="suites.pipeline_parallel.reference.promises",
        old="(chunks + len(ranks) - 1)]",
        new="(chunks + 1)]",
    ),
    Fault(
        name="a promised bubble of half the stages, whatever the ranks",
        module="suites.pipeline_parallel.reference.promises",
        old="chunks = microbatches * stages // len(ranks)",
        new="chunks = microbatches * stages // 2",
    ),
    Fault(
        name="an operation that takes what it took in the last step",
        module="suites.pipeline_parallel.reference.promises",
        old="seconds.setdefault((stage, kind), []).append(taken)",
        new="seconds[stage, kind] = [taken]",
    ),
    Fault(
        name="an operation that takes the mean of all steps",
        module="suites.pipeline_parallel.reference.promises",
        old="statistics.median(taken)",
        new="statistics.fmean(taken)",
    ),
    Fault(
        name="a GPU's milliseconds taken for microseconds",
        module="suites.pipeline_parallel.programs.racing",
        old="elapsed_time(later._event)) / 1e3",
        new="elapsed_time(later._event)) / 1e6",
    ),
    Fault(
        name="promised memory of weights of two ranks",
        module="suites.pipeline_parallel.reference.promises",
        old="return 2 * model.blocks // ranks",
        new="return 2 * model.blocks // 2",
    ),
    Fault(
        name="the first step timed as all others",
        module="suites.pipeline_parallel.programs.racing",
        old="WARM_UPS = 2",
        new="WARM_UPS = 0",
    ),
    Fault(
        name="of several tensors that arrive the last alone is waited for",
        module="torch.distributed.pipelining.schedules",
        old="    for w in work:\n        w.wait()\n",
        new="    for w in work[-1:]:\n        w.wait()\n",
    ),
    Fault(
        name="1F1B's steady phase does not wait for the next activation",
        module="torch.distributed.pipelining.schedules",
        old='            _wait_batch_p2p(_batch_p2p(bwd_sends + fwd_recvs, desc="bwd_send_fwd_recv"))\n',
        new=(
            '            _wait_batch_p2p(_batch_p2p(bwd_sends + fwd_recvs, desc="bwd_send_fwd_recv")[: '
            "len(bwd_sends)])\n"
        ),
    ),
    Fault(
        name="a whole backward that does not wait for its gradient",
        module="torch.distributed.pipelining.schedules",
        old=(
            "                    _wait_batch_p2p(self.bwd_recv_ops.pop((stage_idx, mb_index)))\n"
            "                loss = self._maybe_get_loss(stage, mb_index)\n"
            "                self.backward_counter"
        ),
        new=(
            "                    self.bwd_recv_ops.pop((stage_idx, mb_index))\n"
            "                loss = self._maybe_get_loss(stage, mb_index)\n"
            "                self.backward_counter"
        ),
    ),
    Fault(
        name="half a backward that does not wait for its gradient",
        module="torch.distributed.pipelining.schedules",
        old=(
            "                    _wait_batch_p2p(self.bwd_recv_ops.pop((stage_idx, mb_index)))\n"
            "                loss = self._maybe_get_loss(stage, mb_index)\n"
            "                stage.backward"
        ),
        new=(
            "                    self.bwd_recv_ops.pop((stage_idx, mb_index))\n"
            "                loss = self._maybe_get_loss(stage, mb_index)\n"
            "                stage.backward"
        ),
    ),
    Fault(
        name="a raced schedule that torch cannot run and that nobody leaves out",
        module="suites.pipeline_parallel.programs.racing",
        old="        if reason := cannot_run(schedule, ctx.backend):\n            raise Infeasible(reason)\n",
        new="",
    ),
    Fault(
        name="an evaluation that autograd keeps tensors for",
        module=TRAINING,
        old="        with torch.no_grad():\n            output = self.runner.eval(*inputs, **gate, **last)",
        new="        output = self.runner.eval(*inputs, **gate, **last)",
    ),
    Fault(
        name="a recorder that notes no output that a stage hands on",
        module=STAGES,
        old="self._outputs[stage, microbatch] = weakref.ref(output.untyped_storage())",
        new="pass",
    ),
    Fault(
        name="outputs that outlive their backward are counted at their fewest",
        module=STAGES,
        old="self.most_left = max(self.most_left, len(left))",
        new="self.most_left = min(self.most_left, len(left))",
    ),
    Fault(
        name="gradients divided by the microbatches twice",
        module=RACING,
        old=(
            "                loss_fn=lambda output, target: squared_error(output, target) / count,\n"
            "                scale_grads=False,\n"
        ),
        new="                loss_fn=lambda output, target: squared_error(output, target) / count,\n",
    ),
    Fault(
        name="torch: 1F1B with as many forwards ahead on all ranks",
        module=SCHEDULES,
        old="            self._num_stages - self._stage.stage_index,\n",
        new="            self._num_stages,\n",
    ),
    Fault(
        name="scale_grads=False is not heard",
        module=TRAINING,
        old='            scale_grads=reduction == "mean" if scale_grads is None else scale_grads,\n',
        new='            scale_grads=scale_grads or reduction == "mean",\n',
    ),
    # What chunks.py uses.
    Fault(
        name="keyword arguments cut along their first dimension",
        module="suites.pipeline_parallel.programs.chunks",
        old='        kwargs_chunk_spec={"gate": TensorChunkSpec(1)},',
        new='        kwargs_chunk_spec={"gate": TensorChunkSpec(0)},',
    ),
    Fault(
        name="outputs merged in the reverse order",
        module="torch.distributed.pipelining.microbatch",
        old="                values_to_cat = partial_values\n",
        new="                values_to_cat = partial_values[::-1]\n",
    ),
)
