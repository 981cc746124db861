"""Faults of the subject sequence_parallel."""

from __future__ import annotations

from benchmarks.mutants.fault import Fault

PLACEMENTS = "torch.distributed.tensor.placement_types"
STYLE = "torch.distributed.tensor.parallel.style"
PROGRAMS = "suites.sequence_parallel.programs.block"
RACING = "suites.sequence_parallel.programs.racing"

REDUCE_SCATTER = """        output = funcol.reduce_scatter_single(
            tensor, reduce_op, scatter_dim=self.dim, group=(mesh, mesh_dim)
        )

        if is_padded:
            if pad_sizes is None:"""
RETURNED_TOKENS = (
    "        return outputs.to_local() if use_local_output else outputs\n\n    def _apply(self, module: nn.Module"
)

FAULTS: tuple[Fault, ...] = (
    Fault(
        name="a norm's gradient of this rank's tokens only",
        module=PROGRAMS,
        old="        tensor = tensor.redistribute(placements=[Replicate()])\n    return",
        new="        pass\n    return",
    ),
    Fault(
        name="a norm that is trained with this rank's tokens only",
        module=PROGRAMS,
        old="        optimizer.step()\n",
        new="""        for value in block.norm.parameters():
            value.grad = DTensor.from_local(value.grad.to_local(), value.device_mesh, [Replicate()])
        optimizer.step()
""",
    ),
    Fault(
        name="a norm's bias whose gradient nobody adds up",
        module=PROGRAMS,
        old="        optimizer.step()\n",
        new="""        bias = getattr(block.norm, "bias", None)
        if bias is not None:
            bias.grad = DTensor.from_local(bias.grad.to_local(), bias.device_mesh, [Replicate()])
        optimizer.step()
""",
    ),
    Fault(
        name="an MLP that takes each rank's tokens for all of them",
        module=PROGRAMS,
        old="""        "norm": SequenceParallel(),
        "up": ColwiseParallel(input_layouts=Shard(TOKENS)),
        "down": RowwiseParallel(output_layouts=Shard(TOKENS)),
        "dropout": SequenceParallel(use_local_output=True),
    }
    # All""",
        new="""        "norm": SequenceParallel(use_local_output=True),
        "up": ColwiseParallel(),
        "down": RowwiseParallel(),
        "dropout": SequenceParallel(use_local_output=True),
    }
    # All""",
    ),
    Fault(
        name="an all-reduce where a reduce-scatter would do",
        module=PROGRAMS,
        old="""        "down": RowwiseParallel(output_layouts=Shard(TOKENS)),
        "dropout": SequenceParallel(use_local_output=True),
    }
    # All""",
        new="""        "down": RowwiseParallel(use_local_output=False),
        "dropout": SequenceParallel(use_local_output=True),
    }
    # All""",
    ),
    Fault(
        name="a gather that puts the ranks' tokens in another order where there are more than two",
        module=PLACEMENTS,
        old="        result = funcol.all_gather_single(\n",
        new="""        if mesh.size(mesh_dim) > 2 and self.dim == 1:
            parts = funcol.all_gather_single(local_tensor.contiguous(), gather_dim=0, group=(mesh, mesh_dim)).chunk(
                mesh.size(mesh_dim)
            )
            return torch.cat([parts[0], parts[2], parts[1], *parts[3:]], self.dim)
        result = funcol.all_gather_single(
""",
    ),
    Fault(
        name="a reduce-scatter that goes through bfloat16",
        module=PLACEMENTS,
        old=REDUCE_SCATTER,
        new="        tensor = tensor.bfloat16().to(tensor.dtype)\n" + REDUCE_SCATTER,
    ),
    Fault(
        name="a reduce-scatter that goes through float32",
        module=PLACEMENTS,
        old=REDUCE_SCATTER,
        new="        tensor = tensor.float().to(tensor.dtype)\n" + REDUCE_SCATTER,
    ),
    Fault(
        name="a reduce-scatter that takes the mean",
        module=PLACEMENTS,
        old=REDUCE_SCATTER,
        new="        tensor = tensor / num_chunks\n" + REDUCE_SCATTER,
    ),
    Fault(
        name="a reduce-scatter that loses what lies past element 4096",
        module=PLACEMENTS,
        old=REDUCE_SCATTER,
        new=REDUCE_SCATTER.replace(
            "        if is_padded",
            "        output = output.clone()\n        output.view(-1)[4096:] = 0\n        if is_padded",
        ),
    ),
    Fault(
        name="a norm that is given the first step's tokens in each step",
        module=STYLE,
        old="""            return DTensor.from_local(
                input_tensor, device_mesh, sequence_sharding, run_check=False
            )
        else:
            raise ValueError(
                f"expecting input of {mod}""",
        new="""            first = mod.__dict__.setdefault("_first_tokens", input_tensor.detach().clone())
            input_tensor = input_tensor + (first - input_tensor).detach()
            return DTensor.from_local(
                input_tensor, device_mesh, sequence_sharding, run_check=False
            )
        else:
            raise ValueError(
                f"expecting input of {mod}""",
    ),
    Fault(
        name="gradients that add up over the steps",
        module=PROGRAMS,
        old="        optimizer.zero_grad()\n",
        new="",
    ),
    Fault(
        name="a norm's parameters that do not learn after the first step",
        module=PROGRAMS,
        old="        optimizer.step()\n",
        new="""        if optimizer.state.get("stepped"):
            for value in block.norm.parameters():
                value.grad = None
        optimizer.step()
        optimizer.state["stepped"] = True
""",
    ),
    Fault(
        name="a norm of another epsilon on all ranks but the first",
        module=PROGRAMS,
        old="    block.load_state_dict(parameters)\n",
        new="    block.load_state_dict(parameters)\n    block.norm.eps = EPS if ctx.rank == 0 else 1e-6\n",
    ),
    Fault(
        name="dropout from equal seeds",
        module=PROGRAMS,
        old="""    def step() -> Tensors:
        output = layer(mine)
""",
        new="""    seeds = itertools.count()

    def step() -> Tensors:
        torch.manual_seed(next(seeds))
        output = layer(mine)
""",
    ),
    Fault(
        name="dropout from one seed for two neighbouring ranks",
        module=PROGRAMS,
        old="""    def step() -> Tensors:
        output = layer(mine)
""",
        new="""    torch.manual_seed(ctx.rank // 2)

    def step() -> Tensors:
        output = layer(mine)
""",
    ),
    Fault(
        name="dropout from one seed for all steps",
        module=PROGRAMS,
        old="""    def step() -> Tensors:
        output = layer(mine)
""",
        new="""    def step() -> Tensors:
        torch.manual_seed(ctx.rank)
        output = layer(mine)
""",
    ),
    Fault(
        name="dropout of whole tokens",
        module=PROGRAMS,
        old="""    def step() -> Tensors:
        output = layer(mine)
""",
        new="""    def step() -> Tensors:
        output = mine * nn.functional.dropout(torch.ones_like(mine[..., :1]), layer.p)
""",
    ),
    Fault(
        name="dropout without its scale",
        module=PROGRAMS,
        old="""    def step() -> Tensors:
        output = layer(mine)
""",
        new="""    def step() -> Tensors:
        output = layer(mine) * (1 - layer.p)
""",
    ),
    Fault(
        name="a block whose dropout is left out",
        module=PROGRAMS,
        old="        y: torch.Tensor = self.dropout(self.down(self.up(self.norm(x)).tanh()))\n",
        new="        y = self.down(self.up(self.norm(x)).tanh())\n"
        "        y = y.to_local() if isinstance(y, DTensor) else y\n",
    ),
    Fault(
        name="a block that drops its shortcut too",
        module=PROGRAMS,
        old="        y: torch.Tensor = self.dropout(self.down(self.up(self.norm(x)).tanh()))\n        return x + y",
        new="        y = self.dropout(self.down(self.up(self.norm(x)).tanh()))\n"
        "        return nn.functional.dropout(x, self.dropout.p) + y",
    ),
    Fault(
        name="LayerNorm's bias gets the gradient of the rank's own tokens",
        module="torch.distributed.tensor._ops._math_ops",
        old='Partial("sum") if bias_meta is not None else None,  # d_bias',
        new="Replicate() if bias_meta is not None else None,  # d_bias",
    ),
    Fault(
        name="RMSNorm's weight gets the mean over the ranks, not the sum",
        module="torch.distributed.tensor._ops._math_ops",
        old=(
            'Partial("sum") if weight_meta is not None else None,  # d_weight\n'
            "            _ShardingPlaceholder(dim),  # grad_out"
        ),
        new=(
            'Partial("avg") if weight_meta is not None else None,  # d_weight\n'
            "            _ShardingPlaceholder(dim),  # grad_out"
        ),
        equivalent="only GPUs have the fused kernel that it is in: on CPUs the norm is made of simpler operations",
    ),
    Fault(
        name="norms of gradients that are not summed yet are added up",
        module="torch.distributed.tensor._ops._math_ops",
        old=(
            "            if isinstance(p, Partial) and p.reduce_op != reduction_op:\n"
            "                is_reduction_linear = False"
        ),
        new=(
            "            if (\n"
            "                isinstance(p, Partial)\n"
            "                and not isinstance(reduction_op, NormReduction)\n"
            "                and p.reduce_op != reduction_op\n"
            "            ):\n"
            "                is_reduction_linear = False"
        ),
    ),
    Fault(
        name="the gradient of layer norm's bias is not summed over the ranks' tokens",
        module="torch.distributed.tensor._ops._math_ops",
        old='            Partial("sum") if bias_meta is not None else None,  # d_bias\n',
        new="            Replicate() if bias_meta is not None else None,  # d_bias\n",
    ),
    Fault(
        name="the norm's epsilon is lost, which only RMSNorm notices",
        module="suites.sequence_parallel.programs.block",
        old="NORMS[norm](width, EPS, dtype=dtype, device=device)",
        new="NORMS[norm](width, dtype=dtype, device=device)",
    ),
    Fault(
        name="dropout covers the residual",
        module="suites.sequence_parallel.programs.block",
        old=("        y: torch.Tensor = self.dropout(self.down(self.up(self.norm(x)).tanh()))\n        return x + y"),
        new=(
            "        y: torch.Tensor = self.down(self.up(self.norm(x)).tanh())\n"
            "        output: torch.Tensor = self.dropout(x + y)\n"
            "        return output"
        ),
    ),
    Fault(
        name="layer norm bias gradient not summed",
        module="torch.distributed.tensor._ops._math_ops",
        old='            Partial("sum") if bias_meta is not None else None,  # d_bias',
        new="            Replicate() if bias_meta is not None else None,  # d_bias",
    ),
    # What is raced.
    Fault(
        name="raced blocks that report rank 0's tokens on every rank",
        module=RACING,
        old='return tensor if plan == "sequence" else tokens_of(tensor, ctx.world_size)[ctx.rank]',
        new='return tensor if plan == "sequence" else tokens_of(tensor, ctx.world_size)[0]',
    ),
    Fault(
        name="raced blocks whose norms have the gradients of this rank's tokens only",
        module=RACING,
        old="{name: summed(gradient_of(value)) for",
        new="{name: local(gradient_of(value)) for",
    ),
    Fault(
        name="raced blocks that add up their gradients over the steps",
        module=RACING,
        old="        model.zero_grad(set_to_none=True)\n",
        new="",
    ),
    Fault(
        name="a formula of kept bytes that takes the gathered input for a shard",
        module=RACING,
        old="self.tokens * (self.width + self.hidden // ranks)",
        new="self.tokens * (self.width // share + self.hidden // ranks)",
    ),
    Fault(
        name="an input gradient that adds up over timed steps",
        module=RACING,
        old="        x.grad = None\n",
        new="",
    ),
    Fault(
        name="a rank's tokens as a view, which keeps all of them alive",
        module="suites.sequence_parallel.programs.racing",
        old='return tokens_of(tensor, ctx.world_size)[ctx.rank].clone() if plan == "sequence" else tensor',
        new='return tokens_of(tensor, ctx.world_size)[ctx.rank] if plan == "sequence" else tensor',
    ),
    Fault(
        name="the optimizer has the parameters from before the split",
        module="suites.sequence_parallel.programs.block",
        old="    block = parallel(_block(ctx, norm, given[0].parameters, p), _mesh(ctx))\n"
        "    optimizer = torch.optim.SGD(block.parameters(), lr=rate)\n",
        new="    block = _block(ctx, norm, given[0].parameters, p)\n"
        "    optimizer = torch.optim.SGD(block.parameters(), lr=rate)\n"
        "    block = parallel(block, _mesh(ctx))\n",
    ),
    Fault(
        name="operations of one of a block's two matrices",
        module="suites.sequence_parallel.programs.racing",
        old="return 3.0 * self.layers * 2 * 2 * self.tokens",
        new="return 3.0 * self.layers * 2 * self.tokens",
    ),
    Fault(
        name="operations of a backward that costs as much as a forward",
        module="suites.sequence_parallel.programs.racing",
        old="return 3.0 * self.layers * 2 * 2 * self.tokens",
        new="return 2.0 * self.layers * 2 * 2 * self.tokens",
    ),
    Fault(
        name="a formula of kept bytes whose norms keep 16 bits",
        module="suites.sequence_parallel.programs.racing",
        old="torch.promote_types(self.dtype, torch.float32).itemsize",
        new="self.dtype.itemsize",
    ),
    Fault(
        name="a formula of kept bytes in which RMSNorm keeps a mean",
        module="suites.sequence_parallel.programs.racing",
        old='(2 if self.norm == "layer" else 1)',
        new="2",
    ),
    Fault(
        name="raced blocks that all begin with the same weights",
        module="suites.sequence_parallel.programs.racing",
        old="    for _ in range(sizes.layers):\n",
        new="    for _ in range(sizes.layers):\n        generator.manual_seed(seed)\n",
    ),
    Fault(
        name="a rank sends the parameters that all have",
        module=PROGRAMS,
        old="    parallelize_module(block, mesh, plan, src_data_rank=None)",
        new="    parallelize_module(block, mesh, plan)",
    ),
    Fault(
        name="the input's gradient added up over the steps",
        module=RACING,
        old=("        model.zero_grad(set_to_none=True)\n        x.grad = None\n        output = model(x)\n"),
        new=("        model.zero_grad(set_to_none=True)\n        output = model(x)\n"),
    ),
    Fault(
        name="torch: a row-parallel output summed whole and then cut",
        module=STYLE,
        old=(
            "        # 2. to shard -> reduce_scatter\n"
            "        if outputs.placements != output_layouts:\n"
            "            outputs = outputs.redistribute(placements=output_layouts, async_op=True)\n"
        ),
        new=(
            "        # 2. to shard -> reduce_scatter\n"
            "        if outputs.placements != output_layouts:\n"
            "            outputs = outputs.redistribute(placements=(Replicate(),), async_op=True)\n"
            "            outputs = outputs.redistribute(placements=output_layouts, async_op=True)\n"
        ),
    ),
    Fault(
        name="norms with their own default epsilon",
        module=PROGRAMS,
        old="        self.norm = NORMS[norm](width, EPS, dtype=dtype, device=device)\n",
        new="        self.norm = NORMS[norm](width, dtype=dtype, device=device)\n",
    ),
    Fault(
        name="the backward's traffic with the forward's",
        module=PROGRAMS,
        old="    with Traffic() as backward:\n",
        new="    with Traffic(forward.calls) as backward:\n",
    ),
    Fault(
        name="a reshape in place of chunks before a reduce-scatter",
        module="torch.distributed._functional_collectives",
        old=(
            "        self = _chunk_or_narrow_cat(self, group_size, narrow_dim=scatter_dim, cat_dim=0)\n"
            "\n"
            "    tensor = torch.ops._c10d_functional.reduce_scatter_tensor(\n"
        ),
        new=(
            "        self = self.reshape(\n"
            "            group_size * self.size(0),\n"
            "            *self.shape[1:scatter_dim],\n"
            "            self.size(scatter_dim) // group_size,\n"
            "            *self.shape[scatter_dim + 1 :],\n"
            "        )\n"
            "\n"
            "    tensor = torch.ops._c10d_functional.reduce_scatter_tensor(\n"
        ),
    ),
)
