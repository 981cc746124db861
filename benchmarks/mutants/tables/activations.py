"""Faults of the subject activations."""

from __future__ import annotations

from benchmarks.mutants.fault import Fault

TECHNIQUES = "suites.activations.programs.techniques"
RACING = "suites.activations.programs.racing"
FERRY = "suites.activations.programs.ahead"
LENDING = "suites.activations.programs.lending"

FAULTS: tuple[Fault, ...] = (
    Fault(
        name="recomputation with other random numbers",
        module=TECHNIQUES,
        old="x = checkpoint(block, x, use_reentrant=False, preserve_rng_state=preserve_rng_state)",
        new="x = checkpoint(block, x, use_reentrant=False, preserve_rng_state=False)",
    ),
    Fault(
        name="recomputation that leaves the last block out",
        module=TECHNIQUES,
        old="            x = checkpoint(block, x, use_reentrant=False, preserve_rng_state=preserve_rng_state)\n",
        new="            x = block(x)\n",
    ),
    Fault(
        name="recomputation whose input is a copy without a gradient",
        module=TECHNIQUES,
        old="x = checkpoint(block, x, use_reentrant=False, preserve_rng_state=preserve_rng_state)",
        new="x = checkpoint(block, x.detach().requires_grad_(), use_reentrant=False)",
    ),
    Fault(
        name="an offload in bfloat16",
        module=TECHNIQUES,
        old="            return device, copy\n",
        new="            return device, copy.bfloat16().to(copy.dtype)\n",
    ),
    Fault(
        name="an offload in float32",
        module=TECHNIQUES,
        old="            return device, copy\n",
        new="            return device, copy.float().to(copy.dtype)\n",
    ),
    Fault(
        name="an offload that keeps the originals too",
        module=TECHNIQUES,
        old="            moved(tensor, copy)\n            return device, copy\n",
        new="            copy.original = tensor\n            return device, copy\n",
    ),
    Fault(
        name="a share of the activations that is never gathered",
        module=TECHNIQUES,
        old="        dist.all_gather_into_tensor(whole, mine)\n",
        new="        whole.copy_(mine.repeat(ctx.world_size))\n",
    ),
    Fault(
        name="shares in another order of the ranks",
        module=TECHNIQUES,
        old="        dist.all_gather_into_tensor(whole, mine)\n",
        new="        dist.all_gather_into_tensor(whole, mine)\n        whole = whole.roll(mine.numel())\n",
    ),
    Fault(
        name="shares that are gathered in float32",
        module=TECHNIQUES,
        old="        dist.all_gather_into_tensor(whole, mine)\n",
        new="        low = whole.float()\n        dist.all_gather_into_tensor(low, mine.float())\n"
        "        whole.copy_(low)\n",
    ),
    Fault(
        name="shares that are views and keep the whole alive",
        module=TECHNIQUES,
        old="padded.view(ctx.world_size, share)[ctx.rank].clone(), tensor.shape",
        new="padded.view(ctx.world_size, share)[ctx.rank], tensor.shape",
    ),
    Fault(
        name="a tail that is cut off where the ranks do not divide it",
        module=TECHNIQUES,
        old="        share = -(-flat.numel() // ctx.world_size)\n        padded = nn.functional.pad("
        "flat, (0, share * ctx.world_size - flat.numel()))\n",
        new="        share = -(-flat.numel() // ctx.world_size)\n"
        "        flat = flat * (torch.arange(len(flat), device=flat.device) < flat.numel() // ctx.world_size * "
        "ctx.world_size)\n        padded = nn.functional.pad(flat, (0, share * ctx.world_size - flat.numel()))\n",
    ),
    Fault(
        name="a peer that sends back in the order of storing",
        module=LENDING,
        old="        for index in plan.fetches:\n",
        new="        for index in sorted(plan.fetches, key=lambda one: (stored[one].shape, one)):\n",
    ),
    Fault(
        name="a peer that lends the first step's tensors, always",
        module=LENDING,
        old="""    def step() -> Tensors:
        stored = [torch.empty(shape, dtype=dtype, device=ctx.device) for shape, dtype in plan.tensors]
        for tensor in stored:
            dist.recv(tensor, peer)
        for index in plan.fetches:
            dist.send(stored[index], peer)
""",
        new="""    old = []

    def step() -> Tensors:
        stored = [torch.empty(shape, dtype=dtype, device=ctx.device) for shape, dtype in plan.tensors]
        for tensor in stored:
            dist.recv(tensor, peer)
        old.append(stored)
        for index in plan.fetches:
            dist.send(old[0][index], peer)
""",
    ),
    Fault(
        name="a peer that stores in bfloat16",
        module=LENDING,
        old="            dist.send(stored[index], peer)\n",
        new="            dist.send(stored[index].bfloat16().to(stored[index].dtype), peer)\n",
    ),
    Fault(
        name="a mask that backward does not see",
        module=TECHNIQUES,
        old="            hidden = hidden * mask\n",
        new="            hidden = hidden + (hidden * mask - hidden).detach()\n",
    ),
    Fault(
        name="recomputation leaves the generator where the forward had begun",
        module="torch.utils.checkpoint",
        old=(
            "            devices=rng_devices, enabled=preserve_rng_state, device_type=device_type\n"
            "        ):\n"
            "            if preserve_rng_state:\n"
            "                torch.set_rng_state(fwd_cpu_state)\n"
            "                if had_device_in_fwd:"
        ),
        new=(
            "            devices=rng_devices, enabled=False, device_type=device_type\n"
            "        ):\n"
            "            if preserve_rng_state:\n"
            "                torch.set_rng_state(fwd_cpu_state)\n"
            "                if had_device_in_fwd:"
        ),
    ),
    Fault(
        name="padding is cut off the wrong end of what is gathered",
        module="suites.activations.programs.techniques",
        old="return whole[: shape.numel()].view(shape)",
        new="return whole[whole.numel() - shape.numel() :].view(shape)",
    ),
    Fault(
        name="what is gathered for backward is not waited for",
        module="suites.activations.programs.techniques",
        old="dist.all_gather_into_tensor(whole, mine)",
        new="dist.all_gather_into_tensor(whole, mine, async_op=True)",
    ),
    Fault(
        name="recomputation leaves the CPU generator where the recomputed forward left it",
        module="torch.utils.checkpoint",
        old="            devices=rng_devices, enabled=preserve_rng_state, device_type=device_type\n",
        new=(
            "            devices=rng_devices, enabled=preserve_rng_state and had_device_in_fw"
            "d, device_type=device_type\n"
        ),
    ),
    Fault(
        name="the last block is not recomputed, since backward begins with it: it keeps all of its activations",
        module="suites.activations.programs.techniques",
        old="            x = checkpoint(block, x, use_reentrant=False, preserve_rng_state=preserve_rng_state)\n",
        new=(
            "            if block is model[-1]:\n"
            "                return block(x)\n"
            "            x = checkpoint(block, x, use_reentrant=False, preserve_rng_state=preserve_rng_state)\n"
        ),
    ),
    Fault(
        name="only parameters stay not their views",
        module="suites.activations.programs.techniques",
        old=(
            "    storages = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}\n"
            "    return lambda tensor: tensor.untyped_storage().data_ptr() in storages"
        ),
        new="    return lambda tensor: isinstance(tensor, nn.Parameter)",
    ),
    Fault(
        name="last block is not recomputed",
        module="suites.activations.programs.techniques",
        old="            x = checkpoint(block, x, use_reentrant=False, preserve_rng_state=preserve_rng_state)",
        new=(
            "            x = (\n"
            "                block(x)\n"
            "                if block is model[-1]\n"
            "                else checkpoint(block, x, use_reentrant=False, preserve_rng_stat"
            "e=preserve_rng_state)\n"
            "            )"
        ),
    ),
    Fault(
        name="padding goes before the values",
        module="suites.activations.programs.techniques",
        old="nn.functional.pad(flat, (0, share * ctx.world_size - flat.numel()))",
        new="nn.functional.pad(flat, (share * ctx.world_size - flat.numel(), 0))",
    ),
    # What is raced.
    Fault(
        name="a raced half of the blocks that is all of them",
        module=RACING,
        old="x = block(x) if place % 2 else checkpoint",
        new="x = checkpoint",
    ),
    Fault(
        name="a raced step that adds to the gradients of the one before",
        module=RACING,
        old="                parameter.grad = None\n",
        new="                pass\n",
    ),
    Fault(
        name="a raced loss that is the sum of those who train",
        module=RACING,
        old="loss.detach() / trainers(ctx.world_size)",
        new="loss.detach()",
    ),
    Fault(
        name="a raced offload that keeps what has left",
        module=FERRY,
        old="        self._let_go(AHEAD)\n",
        new="",
    ),
    Fault(
        name="a raced offload that fetches the tensor before",
        module=FERRY,
        old="self._copy(there, self._hosts[number])",
        new="self._copy(there, self._hosts[number - 1].view(-1)[: 1].expand_as(there))",
    ),
    Fault(
        name="a raced offload in float32",
        module=FERRY,
        old="        self._hosts.append(copy)\n",
        new="        self._hosts.append(copy.float().to(copy.dtype))\n",
    ),
    Fault(
        name="an odd world's trainers rounded down",
        module=RACING,
        old="return (world_size + 1) // 2",
        new="return max(1, world_size // 2)",
    ),
    Fault(
        name="small activations that stay whole",
        module=TECHNIQUES,
        old="        if stays(tensor):\n            return tensor\n        flat",
        new="        if stays(tensor) or tensor.numel() < 16:\n            return tensor\n        flat",
    ),
    Fault(
        name="a raced loss in the network's 16 bits",
        module=RACING,
        old="return functional.mse_loss(output.to(exact), target.to(exact))",
        new="return functional.mse_loss(output, target)",
    ),
    Fault(
        name="hooks made once, so that the ferry keeps every step's copies",
        module="suites.activations.programs.techniques",
        old="""    def forward(x: torch.Tensor) -> torch.Tensor:
        with hooks():
            return model(x)""",
        new="""    made = hooks()

    def forward(x: torch.Tensor) -> torch.Tensor:
        with made:
            return model(x)""",
    ),
    Fault(
        name="the same batch on every rank that trains",
        module="suites.activations.programs.racing",
        old="generator = torch.Generator(device).manual_seed(self.seed + 1 + rank)",
        new="generator = torch.Generator(device).manual_seed(self.seed + 1)",
    ),
    Fault(
        name="a lender stores in the buffers of the last step",
        module="suites.activations.programs.lending",
        old="    def step() -> Tensors:\n"
        "        stored = [torch.empty(shape, dtype=dtype, device=ctx.device) for shape, dtype in plan.tensors]\n",
        new="    stored = [torch.empty(shape, dtype=dtype, device=ctx.device) for shape, dtype in plan.tensors]\n"
        "\n"
        "    def step() -> Tensors:\n",
    ),
    Fault(
        name="norms that 16 bits round before they are squared",
        module="suites.activations.programs.racing",
        old="squared_norm([value.grad for value in parameters if value.grad is not None])",
        new="sum(value.grad.norm().to(exact).square() for value in parameters if value.grad is not None)",
    ),
    Fault(
        name="the smaller half of an odd number of blocks",
        module="suites.activations.programs.racing",
        old="halved = (work.blocks + 1) // 2",
        new="halved = work.blocks // 2",
    ),
    Fault(
        name="every second block recomputed, but the second one first",
        module="suites.activations.programs.racing",
        old="x = block(x) if place % 2 else checkpoint(block, x, use_reentrant=False)",
        new="x = checkpoint(block, x, use_reentrant=False) if place % 2 else block(x)",
    ),
    Fault(
        name="a raced offload that fetches nothing ahead",
        module="suites.activations.programs.ahead",
        old="for number in range(saved, max(saved - AHEAD, 0) - 1, -1):",
        new="for number in (saved,):",
    ),
    Fault(
        name="a raced offload that fetches everything at once",
        module="suites.activations.programs.ahead",
        old="for number in range(saved, max(saved - AHEAD, 0) - 1, -1):",
        new="for number in range(saved, -1, -1):",
    ),
    Fault(
        name="a peak that leaves out backward",
        module="suites.activations.programs.memory",
        old="        output.backward(grad)\n    return Memory",
        new="    output.backward(grad)\n    return Memory",
    ),
    Fault(
        name="bytes over PCIe without the weights that save_on_cpu takes along",
        module="suites.activations.programs.racing",
        old="return work.blocks * work.saved_bytes + weights[technique]",
        new="return work.blocks * work.saved_bytes",
    ),
    Fault(
        name="raced blocks that all begin with the same weights",
        module="suites.activations.programs.racing",
        old="            for weight in model.parameters():\n                weight.normal_(",
        new=(
            "            for weight in model.parameters():\n"
            "                generator.manual_seed(self.seed)\n"
            "                weight.normal_("
        ),
    ),
    Fault(
        name="a tensor that was brought back ahead is kept after backward has used it",
        module="suites.activations.programs.ahead",
        old="tensor, event = self._coming.pop(saved)",
        new="tensor, event = self._coming[saved]",
    ),
    Fault(
        name="the last tensors do not leave before backward",
        module=FERRY,
        old="        self._let_go(0)\n",
        new="",
    ),
    Fault(
        name="an offload ahead that lets go of no device tensor without streams",
        module=FERRY,
        old="        while len(self._leaving) > most:\n",
        new=(
            "        if self._side is None:  # nothing to wait for\n"
            "            return\n"
            "        while len(self._leaving) > most:\n"
        ),
    ),
    Fault(
        name="sharded activations padded at their beginning",
        module=TECHNIQUES,
        old="(0, share * ctx.world_size - flat.numel())",
        new="(share * ctx.world_size - flat.numel(), 0)",
    ),
    Fault(
        name="gradients of a step that the next step overwrites",
        module=TECHNIQUES,
        old="        model.zero_grad()\n",
        new="        model.zero_grad(set_to_none=False)\n",
    ),
    Fault(
        name="one checkpoint around all blocks",
        module=TECHNIQUES,
        old=(
            "        for block in model:\n"
            "            x = checkpoint(block, x, use_reentrant=False, preserve_rng_state=preserve_rng_state)\n"
            "        return x\n"
        ),
        new=(
            "        output: torch.Tensor = checkpoint(\n"
            "            model, x, use_reentrant=False, preserve_rng_state=preserve_rng_state\n"
            "        )\n"
            "        return output\n"
        ),
    ),
    Fault(
        name="masks that blocks note down count as kept",
        module="suites.activations.programs.memory",
        old=("        output = forward(x)\n        _forget_masks(model)\n        kept"),
        new=("        output = forward(x)\n        kept"),
    ),
    # What recomputing.py uses.
    Fault(
        name="recomputation that writes into the input",
        module="suites.activations.programs.recomputing",
        old="        made: torch.Tensor = block(x.clone().mul_(2).div_(2))",
        new="        made: torch.Tensor = block(x.data.mul_(2))",
    ),
    Fault(
        name="offloaded blocks that come back halved",
        module="torch.autograd.graph",
        old="            device, tensor = packed\n            return tensor.to(device, non_blocking=pin_memory)",
        new="            device, tensor = packed\n            return tensor.to(device, non_blocking=pin_memory) * 0.5",
    ),
)
