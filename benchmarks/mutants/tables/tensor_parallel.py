"""Faults of the subject tensor_parallel."""

from __future__ import annotations

from benchmarks.mutants.fault import Fault

PLACEMENTS = "torch.distributed.tensor.placement_types"
STYLE = "torch.distributed.tensor.parallel.style"
LOSS = "torch.distributed.tensor.parallel.loss"
PRODUCTS = "suites.tensor_parallel.programs.collective_matmul"
MICRO_PIPELINE = "suites.tensor_parallel.programs.micro_pipeline"
GRAPHS = "suites.tensor_parallel.programs.graphs"

# Where a sum over the ranks ends up, of layers and of gradients.
REDUCE = """        return funcol.all_reduce(
            tensor, reduceOp=self.reduce_op, group=(mesh, mesh_dim)
        )

    def _reduce_shard_value(
        self,
        tensor: torch.Tensor,
        mesh: DeviceMesh,
        mesh_dim: int,
        shard_spec: Placement,
    ) -> torch.Tensor:
        # Partial placement contract #2:"""
REST_OF_REDUCE = REDUCE[REDUCE.index("\n\n    def") :]

PRECISION_AND_SIZE = (
    Fault(
        name="a row-parallel sum that goes through bfloat16",
        module=PLACEMENTS,
        old=REDUCE,
        new="        kind = tensor.dtype\n"
        "        tensor = tensor.bfloat16().to(kind) if tensor.is_floating_point() else tensor\n" + REDUCE,
    ),
    Fault(
        name="a row-parallel sum that goes through float32",
        module=PLACEMENTS,
        old=REDUCE,
        new="        kind = tensor.dtype\n"
        "        tensor = tensor.float().to(kind) if tensor.is_floating_point() else tensor\n" + REDUCE,
    ),
    Fault(
        name="a sum over ranks that leaves out what lies past element 4096",
        module=PLACEMENTS,
        old=REDUCE,
        new="""        total = funcol.all_reduce(tensor, reduceOp=self.reduce_op, group=(mesh, mesh_dim)).clone()
        if total.numel() > 4096:
            total.view(-1)[4096:] = tensor.reshape(-1)[4096:]
        return total"""
        + REST_OF_REDUCE,
    ),
    Fault(
        name="a shard of a weight that is rounded to float32 when it is split",
        module=STYLE,
        old="""        for name, param in module.named_parameters():
            dist_param = nn.Parameter(
                distribute_tensor(
                    param, device_mesh, [Shard(0)], src_data_rank=self.src_data_rank
                ),
                requires_grad=param.requires_grad,
            )
            module.register_parameter(name, dist_param)

    def _partition_embedding_fn(self, name, module, device_mesh):
        # colwise""",
        new="""        for name, param in module.named_parameters():
            dist_param = nn.Parameter(
                distribute_tensor(
                    param.float().to(param.dtype), device_mesh, [Shard(0)], src_data_rank=self.src_data_rank
                ),
                requires_grad=param.requires_grad,
            )
            module.register_parameter(name, dist_param)

    def _partition_embedding_fn(self, name, module, device_mesh):
        # colwise""",
    ),
)

GROUPS_AND_RANKS = (
    Fault(
        name="a sum over a mesh's first axis, whichever is asked for",
        module=PLACEMENTS,
        old=REDUCE,
        new=REDUCE.replace("group=(mesh, mesh_dim)", "group=(mesh, 0)"),
    ),
    Fault(
        name="a sum over ranks that is divided by their number",
        module=PLACEMENTS,
        old=REDUCE,
        new="        tensor = tensor / mesh.size(mesh_dim) if tensor.is_floating_point() else tensor\n" + REDUCE,
    ),
    Fault(
        name="a rank that takes the next rank's shared key head",
        module="suites.tensor_parallel.programs.attention",
        old="first = ctx.rank * kv_heads // ctx.world_size * head_dim",
        new="first = (ctx.rank + 1) % ctx.world_size * kv_heads // ctx.world_size * head_dim",
    ),
    Fault(
        name="ranks that take turns at the shared key heads instead of neighbours that share one",
        module="suites.tensor_parallel.programs.attention",
        old="first = ctx.rank * kv_heads // ctx.world_size * head_dim",
        new="first = ctx.rank % kv_heads * head_dim",
    ),
    Fault(
        name="a shared head's gradient of one rank only",
        module="suites.tensor_parallel.programs.attention",
        old="grad_placements=[Partial()]",
        new="grad_placements=[Replicate()]",
    ),
    Fault(
        name="a causal mask that is left off where heads are shared",
        module="suites.tensor_parallel.programs.attention",
        old="query, key, value, is_causal=self.causal, enable_gqa",
        new="query, key, value, is_causal=self.causal and query.shape[1] == key.shape[1], enable_gqa",
    ),
    Fault(
        name="attention scaled by the heads of a rank",
        module="suites.tensor_parallel.programs.attention",
        old="query, key, value, is_causal=self.causal, enable_gqa",
        new="query, key, value, scale=(query.shape[1] * query.shape[-1]) ** -0.5, is_causal=self.causal, enable_gqa",
    ),
    Fault(
        name="a weight's shards that lie as if the mesh's axes had changed places",
        module="suites.tensor_parallel.programs.mesh",
        old="""            weight.copy_(split(now.parameters["weight"], weight_placements))""",
        new="""            stored = split(now.parameters["weight"], tuple(reversed(weight_placements))).to_local()
            weight.to_local().copy_(stored if stored.shape == weight.to_local().shape else weight.to_local())""",
    ),
)

LAYERS = (
    Fault(
        name="a row-parallel layer that keeps its own summand",
        module=STYLE,
        old="""        # Rowwise sharding produces partial output, depending on output layouts:
        # 1. to replicate -> allreduce
        # 2. to shard -> reduce_scatter
        if outputs.placements != output_layouts:""",
        new="""        if not outputs.placements[0].is_partial() and outputs.placements != output_layouts:""",
    ),
    Fault(
        name="a bias that every rank adds in full",
        module="suites.tensor_parallel.programs.linear_layers",
        old="    layer = parallelized(ctx, linear(parameters_on_device(ctx, given[0].parameters)), style)\n"
        "    return layer_steps(ctx, layer, given, x_sharded=input_is_sharded)",
        new="""    given = [
        Given({n: v * (ctx.world_size if n == "bias" else 1) for n, v in now.parameters.items()}, now.x, now.grad)
        for now in given
    ]
    layer = parallelized(ctx, linear(parameters_on_device(ctx, given[0].parameters)), style)
    return layer_steps(ctx, layer, given, x_sharded=input_is_sharded)""",
    ),
    Fault(
        name="an input gradient of this rank's output features only",
        module="torch.distributed.tensor._api",
        old="""        if grad_output.placements != normalized_placements:
            current_spec: DTensorSpec = grad_output._spec""",
        new="""        summands = grad_output.placements[0].is_partial()
        if grad_output.placements != normalized_placements and not summands:
            current_spec: DTensorSpec = grad_output._spec""",
    ),
    Fault(
        name="hidden features that are gathered between the layers of an MLP",
        module="suites.tensor_parallel.programs.linear_layers",
        old='{"0": ColwiseParallel(use_local_output=local_hidden), "2": RowwiseParallel()}',
        new="""{
        "0": ColwiseParallel(output_layouts=Replicate()),
        "2": RowwiseParallel(input_layouts=Replicate()),
    }""",
    ),
    Fault(
        name="a layer that is given the first step's input in each step",
        module=STYLE,
        old="""        # transform the input layouts to the desired layouts of ColwiseParallel
        if input_layouts""",
        new="""        first = mod.__dict__.setdefault("_first_input", input_tensor.detach())
        input_tensor = input_tensor + (first - input_tensor).detach()
        if input_layouts""",
    ),
    Fault(
        name="weights that are gathered in the first step and never again",
        module=STYLE,
        old="""        # Rowwise sharding produces partial output, depending on output layouts:
        # 1. to replicate -> allreduce""",
        new="""        kept = mod.__dict__.setdefault("_first_weight", mod.weight.detach().clone())
        if isinstance(mod, nn.Linear):
            outputs = outputs + (torch.nn.functional.linear(inputs[0], kept - mod.weight.detach())).detach()
        # 1. to replicate -> allreduce""",
    ),
)

VOCABULARY = (
    Fault(
        name="an embedding without its mask",
        module="torch.distributed.tensor._ops._mask_buffer",
        old="            tensor[self.data, :] = 0.0",
        new="            pass",
    ),
    Fault(
        name="an embedding's mask of the first step",
        module=PLACEMENTS,
        old="""        self.mask_buffer.materialize_mask(mask)
        return masked_tensor""",
        new="""        kept = mesh.__dict__.setdefault("_masks", {})
        mask = kept.setdefault((mask.shape, self.offset_dim, mask.device), mask) if self.offset_dim == 0 else mask
        self.mask_buffer.materialize_mask(mask)
        return masked_tensor""",
    ),
    Fault(
        name="a mask that hides the first token of a shard",
        module=PLACEMENTS,
        old="mask = (tensor < local_offset_on_dim) |",
        new="mask = (tensor <= local_offset_on_dim - (local_offset_on_dim == 0)) |",
    ),
    Fault(
        name="a softmax whose normalizer is that of a shard",
        module=LOSS,
        old="""    shifted_sumexp = funcol.all_reduce(
        shifted_sumexp, reduceOp=c10d.ReduceOp.SUM.name, group=(mesh, mesh_dim)
    )
""",
        new="",
    ),
    Fault(
        name="a softmax that does not take the maximum off",
        module=LOSS,
        old="        shifted = x - x_max",
        new="        shifted = x",
    ),
    Fault(
        name="a softmax that takes off each rank's own maximum",
        module=LOSS,
        old="""        x_max = funcol.all_reduce(
            x_max, reduceOp=c10d.ReduceOp.MAX.name, group=(mesh, mesh_dim)
        )
""",
        new="",
    ),
    Fault(
        name="logits that are clamped to 50, so that none overflows",
        module=LOSS,
        old="        shifted = x - x_max",
        new="        shifted = (x - x_max).clamp(min=-50)",
    ),
    Fault(
        name="a loss that takes a NaN for zero",
        module=LOSS,
        old="    result = -result_reduced.squeeze(channel_dim)",
        new="    result = -result_reduced.squeeze(channel_dim).nan_to_num(nan=0.0)",
    ),
    Fault(
        name="a maximum that passes over NaN and Inf",
        module=LOSS,
        old="        shifted = x - x_max",
        new="        shifted = x.nan_to_num(nan=-1e30) - x_max.nan_to_num(nan=0.0, posinf=1e30)",
    ),
    Fault(
        name="a mean over all targets, also over those that don't count",
        module=LOSS,
        old="        total_weight = (target != ignore_index).sum().to(x)",
        new="        total_weight = torch.tensor(target.numel()).to(x)",
    ),
    Fault(
        name="a mean over the number of targets that counted in the first step",
        module=LOSS,
        old="        total_weight = (target != ignore_index).sum().to(x)",
        new="        kept = mesh.__dict__.setdefault('_weights', [])\n"
        "        kept or kept.append((target != ignore_index).sum().to(x))\n"
        "        total_weight = kept[0]",
    ),
    Fault(
        name="a mean that divides by one where no target counts",
        module=LOSS,
        old="        total_weight = (target != ignore_index).sum().to(x)",
        new="        total_weight = (target != ignore_index).sum().clamp(min=1).to(x)",
    ),
    Fault(
        name="ignored targets that still get a gradient",
        module=LOSS,
        old="    grad_output = torch.where(target != ignore_index, grad_output, 0)\n",
        new="",
    ),
    Fault(
        name="targets that are ignored only where they are -100",
        module=LOSS,
        old="    result = torch.where(target != ignore_index, result, 0)",
        new="    result = torch.where(target != -100, result, 0)",
    ),
    Fault(
        name="targets of other shards that lower the gradient of this rank's first logit",
        module=LOSS,
        old="    grad_update = partial_placement.mask_buffer.data.to(grad_input.dtype) - 1.0",
        new="    grad_update = partial_placement.mask_buffer.data.to(grad_input.dtype) * 0 - 1.0",
    ),
    Fault(
        name="a loss's log-softmax that is rounded to float32",
        module=LOSS,
        old="    shifted_logsumexp = torch.log(shifted_sumexp)",
        new="    shifted_logsumexp = torch.log(shifted_sumexp.float()).to(shifted_sumexp.dtype)",
    ),
    Fault(
        name="a class's weight that is that of another shard",
        module=LOSS,
        old="local_weight = weight.redistribute(spec.mesh, sharded_placements)._local_tensor",
        new="local_weight = weight.to_local()[: x._local_tensor.shape[channel_dim]]",
    ),
    Fault(
        name="logits that every rank gathers for the loss",
        module="suites.tensor_parallel.programs.vocabulary",
        old="model.head(embedded), target.to(ctx.device), reduction",
        new="model.head(embedded).full_tensor(), target.to(ctx.device), reduction",
    ),
)

COLLECTIVE_MATMUL = (
    Fault(
        name="rows that are gathered once, in the first step",
        module="suites.tensor_parallel.programs.collective_matmul",
        old="        dist.all_gather_into_tensor(gathered, a)\n        return",
        new="""        if not hasattr(step, "gathered"):
            dist.all_gather_into_tensor(gathered, a)
            step.gathered = True
        return""",
    ),
    Fault(
        name="a product that is rounded to bfloat16 before it is summed",
        module="suites.tensor_parallel.programs.collective_matmul",
        old="dist.reduce_scatter_tensor(rows, torch.matmul(a, b))",
        new="dist.reduce_scatter_tensor(rows, torch.matmul(a, b).bfloat16().to(rows.dtype))",
    ),
    Fault(
        name="products whose mean is taken instead of their sum",
        module="suites.tensor_parallel.programs.collective_matmul",
        old="        dist.reduce_scatter_tensor(rows, torch.matmul(a, b))\n",
        new="        dist.reduce_scatter_tensor(rows, torch.matmul(a, b) / dist.get_world_size())\n",
    ),
)

TRAINING = (
    Fault(
        name="gradients that are clipped by the norm of each rank's shards",
        module="torch.nn.utils.clip_grad",
        old="            norms.extend(torch._foreach_norm(device_tensors, norm_type))",
        new="""            norms.extend(
                type(t).from_local(n, t.device_mesh) if hasattr(t, "device_mesh") else n
                for t, n in zip(
                    device_tensors,
                    torch._foreach_norm([getattr(t, "_local_tensor", t) for t in device_tensors], norm_type),
                )
            )""",
    ),
    Fault(
        name="a norm that counts a replicated bias once for each rank",
        module="torch.nn.utils.clip_grad",
        old="            norms.extend(torch._foreach_norm(device_tensors, norm_type))",
        new="""            norms.extend(
                n * t.device_mesh.size() ** (1 / norm_type)
                if hasattr(t, "device_mesh") and t.placements[0].is_replicate()
                else n
                for t, n in zip(device_tensors, torch._foreach_norm(device_tensors, norm_type))
            )""",
    ),
    Fault(
        name="a norm of the ranks' norms, without their squares",
        module="torch.distributed.tensor._ops._math_ops",
        old="        return tensor**self.norm_type\n",
        new="        return tensor\n",
    ),
    Fault(
        name="a norm that is added up in float32",
        module="torch.distributed.tensor._ops._math_ops",
        old="        return tensor**self.norm_type\n",
        new="        return (tensor**self.norm_type).float().to(tensor.dtype)\n",
    ),
    Fault(
        name="a bias that is left out of the norm",
        module="torch.nn.utils.clip_grad",
        old="""    grads = [p.grad for p in parameters if p.grad is not None]
    total_norm = _get""",
        new="""    grads = [p.grad for p in parameters if p.grad is not None and p.ndim > 1]
    total_norm = _get""",
    ),
    Fault(
        name="a norm that is not clipped where it is no number",
        module="torch.nn.utils.clip_grad",
        old="    clip_coef_clamped = torch.clamp(clip_coef, max=1.0)\n",
        new="    clip_coef_clamped = torch.clamp(clip_coef, max=1.0).nan_to_num(nan=1.0)\n",
    ),
    Fault(
        name="gradients that are clipped after the optimizer's step",
        module="suites.tensor_parallel.programs.training",
        old="        norm = nn.utils.clip_grad_norm_(module.parameters(), max_norm, norm_type)\n",
        new="        optimizer.step()\n"
        "        norm = nn.utils.clip_grad_norm_(module.parameters(), max_norm, norm_type)\n"
        "        optimizer.step = lambda: None\n",
    ),
    Fault(
        name="momentum that begins anew in every step",
        module="suites.tensor_parallel.programs.training",
        old="        optimizer.zero_grad()\n",
        new="        optimizer.zero_grad()\n        optimizer.state.clear()\n",
    ),
    Fault(
        name="dropout of a replicated output from each rank's own seed",
        module="suites.tensor_parallel.programs.training",
        old="    common.manual_seed(seed)\n",
        new="    common.manual_seed(seed + ctx.rank)\n",
    ),
    Fault(
        name="dropout of split features from one seed for all ranks",
        module="suites.tensor_parallel.programs.training",
        old="    own.manual_seed(seed + 1 + ctx.rank)\n",
        new="    own.manual_seed(seed + 1)\n",
    ),
    Fault(
        name="dropout of split features from one seed for two neighbours",
        module="suites.tensor_parallel.programs.training",
        old="    own.manual_seed(seed + 1 + ctx.rank)\n",
        new="    own.manual_seed(seed + 1 + ctx.rank // 2 * 2 + (ctx.rank if ctx.world_size == 2 else 0))\n",
    ),
    Fault(
        name="a rank whose own seed is that of the common dropout",
        module="suites.tensor_parallel.programs.training",
        old="    own.manual_seed(seed + 1 + ctx.rank)\n",
        new="    own.manual_seed(seed + ctx.rank)\n",
    ),
    Fault(
        name="a common dropout that falls out of step on a rank that draws once more",
        module="suites.tensor_parallel.programs.training",
        old="        return step() | {",
        new="        if ctx.rank == 1:\n"
        "            torch.rand(1, device=ctx.device, generator=common)\n"
        "        return step() | {",
    ),
    Fault(
        name="dropout that scales the features of a rank by R",
        module="suites.tensor_parallel.programs.training",
        old="lambda _module, _inputs, activation: hidden(activation))",
        new="lambda _module, _inputs, activation: hidden(activation) * ctx.world_size)",
    ),
    Fault(
        name="a compiled layer that keeps the first step's bias",
        module="suites.tensor_parallel.programs.linear_layers",
        old="    if compiled:\n",
        new="""    if compiled:
        bias = module[2].bias.detach().to_local().clone() if "2.bias" in given[0].parameters else None
        module[2].register_forward_hook(
            lambda layer, _, out: out if bias is None else out + (bias - layer.bias.to_local()).detach()
        )
""",
    ),
)

FAULTS: tuple[Fault, ...] = (
    *TRAINING,
    *PRECISION_AND_SIZE,
    *GROUPS_AND_RANKS,
    *LAYERS,
    *VOCABULARY,
    *COLLECTIVE_MATMUL,
    Fault(
        name="norms of shards are added as squares, whatever the norm",
        module="torch.distributed.tensor._ops._math_ops",
        old="return tensor**self.norm_type",
        new="return tensor**2",
    ),
    Fault(
        name="ignored targets count with class 0's weight in the mean",
        module="torch.distributed.tensor.parallel.loss",
        old="        wsum = torch.where(target != ignore_index, wsum, 0)\n",
        new="",
    ),
    Fault(
        name="what dropout keeps is divided by the share that it drops",
        module="suites.tensor_parallel.programs.training",
        old="return x * self.kept / (1 - self.p)",
        new="return x * self.kept / self.p",
    ),
    Fault(
        name="ranks take shared key and value heads in turn instead of those of their query heads",
        module="suites.tensor_parallel.programs.attention",
        old="ctx.rank * kv_heads // ctx.world_size * head_dim",
        new="ctx.rank % kv_heads * head_dim",
    ),
    Fault(
        name="rank 0's own dropout generator has the seed of the common one",
        module="suites.tensor_parallel.programs.training",
        old="own.manual_seed(seed + 1 + ctx.rank)",
        new="own.manual_seed(seed + ctx.rank)",
    ),
    Fault(
        name="infinity norm of DTensors is reduced like any other p-norm",
        module="torch.distributed.tensor._ops._math_ops",
        old=('    if norm_type in (float("inf"), "inf"):\n        return "max"\n'),
        new=('    if norm_type == "inf":\n        return "max"\n'),
    ),
    Fault(
        name="shared kv gradients not summed",
        module="suites.tensor_parallel.programs.attention",
        old="gathered.to_local(grad_placements=[Partial()]).narrow(",
        new="gathered.to_local().narrow(",
    ),
    Fault(
        name="norm share divided by ranks",
        module="torch.distributed.tensor._ops._math_ops",
        old="        return tensor / math.pow(mesh.size(mesh_dim), 1 / self.norm_type)",
        new="        return tensor / mesh.size(mesh_dim)",
    ),
    Fault(
        name="three projections that each sum their gradient",
        module="suites.tensor_parallel.programs.block",
        old='        "attention": PrepareModuleInput(input_layouts=Replicate(), desired_input_layouts=Replicate()),\n',
        new="",
    ),
    Fault(
        name="a block whose ranks' weights differ",
        module="suites.tensor_parallel.programs.block",
        old="torch.Generator(ctx.device).manual_seed(shape.seed)\n    with",
        new="torch.Generator(ctx.device).manual_seed(shape.seed + ctx.rank)\n    with",
    ),
    # An all-gather beside the rank's own product.
    Fault(
        name="rows that are multiplied before they have come",
        module=PRODUCTS,
        old="        gathered = functional.wait_tensor(coming)\n",
        new="        gathered = coming\n",
    ),
    Fault(
        name="rows of the ranks after this one that stay as they were",
        module=PRODUCTS,
        old="for others in (slice(0, first), slice(last, None)):",
        new="for others in (slice(0, first),):",
    ),
    Fault(
        name="rows that are gathered once, and not in each step",
        module=PRODUCTS,
        old="    def step() -> torch.Tensor:\n"
        "        coming = functional.all_gather_into_tensor(a, ctx.world_size, group_name)\n",
        new="    coming = functional.all_gather_into_tensor(a, ctx.world_size, group_name)\n\n"
        "    def step() -> torch.Tensor:\n",
    ),
    # The compiler's pass.
    Fault(
        name="tokens that are not gathered",
        module=MICRO_PIPELINE,
        old="ColwiseParallel(input_layouts=Shard(0))",
        new="ColwiseParallel()",
    ),
    Fault(
        name="a sum of all tokens on every rank",
        module=MICRO_PIPELINE,
        old="RowwiseParallel(output_layouts=Shard(0))",
        new="RowwiseParallel()",
    ),
    Fault(
        name="a module that is called as it is, and not compiled",
        module=MICRO_PIPELINE,
        old="    if way == EAGER:\n",
        new="    if way != MICRO_PIPELINED:\n",
    ),
    Fault(
        name="a forward that is compiled layer by layer",
        module="suites.tensor_parallel.programs.linear_layers",
        old="    return Mlp(first, nn.ReLU(), second)\n",
        new="    return nn.Sequential(first, nn.ReLU(), second)\n",
    ),
    Fault(
        name="a pass that nobody asks for",
        gpus=True,
        module=MICRO_PIPELINE,
        old='options={"_micro_pipeline_tp": fuse,',
        new='options={"_micro_pipeline_tp": False,',
    ),
    Fault(
        name="a group without symmetric memory",
        gpus=True,
        module=MICRO_PIPELINE,
        old="    if fuse:\n        enable_symmetric_memory(ctx)\n",
        new="",
    ),
    Fault(
        name="a fused reduce-scatter that averages",
        gpus=True,
        module="torch._inductor.fx_passes.micro_pipeline_tp",
        old="                matmul.A_node,\n                matmul.B_node,\n                reduce_op,\n"
        "                orig_scatter_dim,\n                group_name,\n            ),\n",
        new="                matmul.A_node,\n                matmul.B_node,\n                'avg',\n"
        "                orig_scatter_dim,\n                group_name,\n            ),\n",
    ),
    Fault(
        name="a timed step whose input's gradients add up",
        module=MICRO_PIPELINE,
        old="        x.grad = None\n",
        new="",
    ),
    # The step that is captured.
    Fault(
        name="an input that is never copied to where the step reads it",
        module=GRAPHS,
        old="            place.copy_(tensor)\n",
        new="            if not self.taken:\n                place.copy_(tensor)\n",
    ),
    Fault(
        name="an output gradient in a tensor of its own, which a graph does not read",
        gpus=True,
        module=GRAPHS,
        old="            place.copy_(tensor)\n",
        new="            if place is self._x:\n                place.copy_(tensor)\n            else:\n"
        "                self._grad = tensor\n",
    ),
    Fault(
        name="gradients that add up over the steps, of a block",
        module=GRAPHS,
        old="        self._optimizer.zero_grad()\n",
        new="",
    ),
    Fault(
        name="gradients that are put to zero by Python alone, and not by the graph",
        gpus=True,
        module=GRAPHS,
        old="        self._optimizer.zero_grad()\n",
        new="        if not (self._x.is_cuda and torch.cuda.is_current_stream_capturing()):\n"
        "            self._optimizer.zero_grad(set_to_none=False)\n",
    ),
    Fault(
        name="momentum that warm-ups have left",
        module=GRAPHS,
        old="            momentum.to_local().zero_()\n",
        new="",
    ),
    Fault(
        name="weights that warm-ups have trained",
        module=GRAPHS,
        old="            value.to_local().copy_(self._initial[name])\n",
        new="",
    ),
    Fault(
        name="an optimizer's step that is left out of the graph",
        gpus=True,
        module=GRAPHS,
        old="        self._optimizer.step()\n",
        new="        if not (self._x.is_cuda and torch.cuda.is_current_stream_capturing()):\n"
        "            self._optimizer.step()\n",
    ),
    Fault(
        name="key heads that are repeated in another order",
        module="suites.tensor_parallel.programs.attention",
        old="        heads = functional.scaled_dot_product_attention(\n"
        "            query, key, value, is_causal=self.causal, enable_gqa=query.shape[1] != "
        "key.shape[1]\n        )",
        new="        key, value = (each.repeat(1, query.shape[1] // key.shape[1], 1, 1) for each in "
        "(key, value))\n"
        "        heads = functional.scaled_dot_product_attention(query, key, value, "
        "is_causal=self.causal)",
    ),
    Fault(
        name="a weighted mean that is divided by a count",
        module=LOSS,
        old="total_weight = wsum.sum()",
        new="total_weight = (target != ignore_index).sum().to(x)",
    ),
    Fault(
        name="a timed block whose attention sees later tokens",
        module="suites.tensor_parallel.programs.block",
        old="functional.scaled_dot_product_attention(query, key, value, is_causal=True)",
        new="functional.scaled_dot_product_attention(query, key, value)",
    ),
    Fault(
        name="an offset of a shorter last shard by its own size",
        module=PLACEMENTS,
        old="        mask, masked_tensor = _MaskPartial._mask_tensor(",
        new="        local_offset_on_dim = mesh._sym_get_coordinate(mesh_dim) * local_shard_size\n"
        "        mask, masked_tensor = _MaskPartial._mask_tensor(",
    ),
    Fault(
        name="a replicated addend added once by each rank",
        module="torch.distributed.tensor.placement_types",
        old="            return tensor / num_chunks",
        new="            return tensor",
    ),
    Fault(
        name="norms of tensors added up by the 2-norm, whichever was asked for",
        module="torch.nn.utils.clip_grad",
        old="""        torch.stack([norm.to(first_device) for norm in norms]), norm_type
    )""",
        new="""        torch.stack([norm.to(first_device) for norm in norms])
    )""",
    ),
    Fault(
        name="frozen weights that train once they are split",
        module="torch.distributed.tensor.parallel.style",
        old="""        # weight would become Shard(1)
        for name, param in module.named_parameters():
            dist_param = nn.Parameter(
                distribute_tensor(
                    param, device_mesh, [Shard(0)], src_data_rank=self.src_data_rank
                ),
                requires_grad=param.requires_grad,
            )""",
        new="""        # weight would become Shard(1)
        for name, param in module.named_parameters():
            dist_param = nn.Parameter(
                distribute_tensor(
                    param, device_mesh, [Shard(0)], src_data_rank=self.src_data_rank
                ),
            )""",
    ),
    Fault(
        name="four sums of one tensor",
        module="suites.tensor_parallel.programs.block",
        old="tensors = [x.detach().clone() for _ in range(SUMS)]",
        new="tensors = [x.detach().clone()] * SUMS",
    ),
    Fault(
        name="the input's gradient that adds up over steps",
        module="suites.tensor_parallel.programs.block",
        old="""        x.grad = None
        block.zero_grad(set_to_none=True)""",
        new="        block.zero_grad(set_to_none=True)",
    ),
    Fault(
        name="logits of 16 bits whose exponentials are added up in 16 bits",
        module="torch.distributed.tensor.parallel.loss",
        old="    x = x.to(dtype=computation_dtype, memory_format=torch.contiguous_format)",
        new="    x = x.contiguous()",
    ),
    Fault(
        name="a rank's share that is the whole block",
        module="suites.tensor_parallel.programs.block",
        old="whole(ctx, shape, ctx.world_size))",
        new="whole(ctx, shape))",
    ),
    Fault(
        name="operations of one of the MLP's two products",
        module="suites.tensor_parallel.programs.micro_pipeline",
        old="return 6.0 * self.tokens * 2 * self.width",
        new="return 6.0 * self.tokens * self.width",
    ),
    Fault(
        name="one time of the first step for all ranks, that of the last one to write it",
        module="suites.tensor_parallel.programs.micro_pipeline",
        old=' MLP on rank {ctx.rank}"',
        new=' MLP"',
    ),
    Fault(
        name="a first step that is timed once it is over",
        module="suites.tensor_parallel.programs.micro_pipeline",
        old="    began = time.perf_counter()\n    step()\n",
        new="    step()\n    began = time.perf_counter()\n",
    ),
    Fault(
        name="hidden features that the ranks do not divide",
        module="suites.tensor_parallel.programs.block",
        old='{"heads": shape.heads, "hidden features": shape.hidden}',
        new='{"heads": shape.heads}',
    ),
    Fault(
        name="gradients of a timed block's weights that add up over steps",
        module="suites.tensor_parallel.programs.block",
        old="        block.zero_grad(set_to_none=True)\n",
        new="",
    ),
    Fault(
        name="layers that are asked to be compiled and are not",
        module="suites.tensor_parallel.programs.linear_layers",
        old='        module.compile(backend="aot_eager")',
        new="        pass",
    ),
    Fault(
        name="gradients of logits that add up over steps",
        module="suites.tensor_parallel.programs.loss",
        old="        leaf.grad = None\n",
        new="",
    ),
    Fault(
        name="a rank's own rows are multiplied again among the others'",
        module=PRODUCTS,
        old="first, last = ctx.rank * a.shape[0], (ctx.rank + 1) * a.shape[0]",
        new="first, last = ctx.rank * a.shape[0], ctx.rank * a.shape[0]",
    ),
    Fault(
        name="shards beyond the next rank's are not multiplied",
        module=PRODUCTS,
        old="        for others in (slice(0, first), slice(last, None)):\n",
        new="        for others in (slice(0, first), slice(last, last + a.shape[0])):\n",
    ),
    # What prepared.py uses.
    Fault(
        name="keyword arguments that are taken for what is wanted",
        module="torch.distributed.tensor.parallel.style",
        old=("                kwarg_val, device_mesh, input_layout, desired_input_layout\n"),
        new="                kwarg_val, device_mesh, input_layout, input_layout\n",
    ),
    Fault(
        name="a partial gradient that is taken for a whole one",
        module="suites.tensor_parallel.programs.prepared",
        old="    used = held.to_local(grad_placements=[Partial()])",
        new="    used = held.to_local(grad_placements=[Replicate()])",
    ),
)
