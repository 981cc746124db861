"""Faults of the subject llm_step."""

from __future__ import annotations

from benchmarks.mutants.fault import Fault

PROGRAMS = "suites.llm_step.programs"
LLM = "suites.shared.llm"
FSDP = "torch.distributed.fsdp._fully_shard._fsdp_param_group"
COLLECTIVES = "torch.distributed.fsdp._fully_shard._fsdp_collectives"

FAULTS: tuple[Fault, ...] = (
    Fault(
        name="all ranks train on the tokens of the first",
        module=LLM,
        old="generator=generator)[ctx.rank].to(ctx.device)",
        new="generator=generator)[0].to(ctx.device)",
    ),
    Fault(
        name="the token itself is the target",
        module=LLM,
        old="mine[:, 1:].contiguous()",
        new="mine[:, :-1].contiguous()",
    ),
    Fault(
        name="gradients that add up over steps",
        module=LLM,
        old="        optimizer.zero_grad()\n",
        new="",
    ),
    Fault(
        name="the optimizer has the layers alone",
        module=LLM,
        old="optimizer = fused_adamw(list(model.parameters()))",
        new="optimizer = fused_adamw(list(model.layers.parameters()))",
    ),
    Fault(
        name="a loss of the rank's own tokens",
        module=LLM,
        old="    dist.all_reduce(mean)\n    return mean / ctx.world_size\n",
        new="    return mean\n",
    ),
    Fault(
        name="parameters travel in float32",
        module=LLM,
        old="param_dtype=work.compute",
        new="param_dtype=torch.float32",
    ),
    Fault(
        name="gradients travel in float32",
        module=LLM,
        old="reduce_dtype=work.parameters",
        new="reduce_dtype=torch.float32",
    ),
    Fault(
        name="each rank shards over itself",
        module=LLM,
        old='["alone"] if alone else ctx.mesh((ctx.world_size,))',
        new='["alone"]',
    ),
    Fault(
        name="layers that are not synchronised",
        module=LLM,
        old="        fully_shard(layer, mesh=mesh, mp_policy=policy)\n",
        new="        fully_shard(layer, mesh=mesh, mp_policy=policy).set_requires_gradient_sync(False)\n",
    ),
    Fault(
        name="a rank trains on another seed's weights",
        module=LLM,
        old="draw_on_device(model, self.config, self.seed)",
        new="draw_on_device(model, self.config, self.seed + int(dist.get_rank() == 1))",
    ),
    Fault(
        name="twice the learning rate",
        module=LLM,
        old="lr=LEARNING_RATE, fused=True",
        new="lr=2 * LEARNING_RATE, fused=True",
    ),
    Fault(
        name="the part alone shards over all ranks",
        module=LLM,
        old='("others", "alone"))["alone"] if alone',
        new='("others", "alone"))["others"] if alone',
    ),
    Fault(
        name="rotary angles in 16 bits",
        module="suites.shared.llama",
        old="exact = torch.promote_types(x.dtype, torch.float32)",
        new="exact = x.dtype",
    ),
    Fault(
        name="gradients that are summed in the dtype of computation",
        module=LLM,
        old="MixedPrecisionPolicy(param_dtype=work.compute, reduce_dtype=work.parameters)",
        new="MixedPrecisionPolicy(param_dtype=work.compute)",
    ),
    Fault(
        name="a loss in 16 bits",
        module="suites.shared.llama",
        old="logits.to(torch.promote_types(logits.dtype, torch.float32))",
        new="logits",
    ),
    Fault(
        name="gradients alone that travel in the dtype of products",
        module="suites.llm_step.programs",
        old="""device=ctx.device) for dtype in (work.compute, work.parameters)
    )
    part, shard = (torch.zeros(share, dtype=dtype, device=ctx.device) for dtype in (work.compute, work.parameters))""",
        new="""device=ctx.device) for dtype in (work.compute, work.compute)
    )
    part, shard = (torch.zeros(share, dtype=dtype, device=ctx.device) for dtype in (work.compute, work.compute))""",
    ),
    Fault(
        name="operations of attention that sees later tokens too",
        module="suites.shared.llama",
        old="attention = 2.0 * config.layers",
        new="attention = 4.0 * config.layers",
    ),
    Fault(
        name="operations of as many heads of keys as of queries",
        module="suites.shared.llama",
        old="of_layer = 2 * config.dim**2 + 2 * config.dim * kv_dim +",
        new="of_layer = 4 * config.dim**2 +",
    ),
    Fault(
        name="operations of the embedding, which multiplies nothing",
        module="suites.shared.llama",
        old="of_layer + config.dim * config.vocabulary",
        new="of_layer + 2 * config.dim * config.vocabulary",
    ),
    Fault(
        name="tokens per second that count the last target's place twice",
        module="suites.shared.llm",
        old="return world_size * self.sequences * self.length",
        new="return world_size * self.sequences * (self.length + 1)",
    ),
    Fault(
        name="gradients of forward and backward alone that add up over steps",
        module="suites.llm_step.programs",
        old="        model.zero_grad()\n",
        new="",
    ),
    Fault(
        name="a step's FLOP take grouped keys and values for full ones",
        module="suites.shared.llama",
        old="    kv_dim = config.kv_heads * config.head_dim\n    of_layer",
        new="    kv_dim = config.heads * config.head_dim\n    of_layer",
    ),
    Fault(
        name="mixed precision that computes in the parameters' dtype",
        module=LLM,
        old="MixedPrecisionPolicy(param_dtype=work.compute, reduce_dtype=work.parameters)",
        new="MixedPrecisionPolicy(param_dtype=work.parameters, reduce_dtype=work.parameters)",
    ),
    Fault(
        name="a rank that is not alone",
        module=LLM,
        old='ctx.mesh((ctx.world_size, 1), ("others", "alone"))',
        new='ctx.mesh((1, ctx.world_size), ("others", "alone"))',
    ),
    Fault(
        name="gradients reduced in 16 bits",
        module="torch.distributed.fsdp._fully_shard._fsdp_param",
        old=("        if reduce_dtype == param_dtype:\n            reduce_dtype = None\n"),
        new=("        if reduce_dtype == self.orig_dtype:\n            reduce_dtype = None\n"),
    ),
    Fault(
        name="the last group is gathered twice",
        module=PROGRAMS,
        old="[(rest, 1)]",
        new="[(rest, 2)]",
    ),
    Fault(
        name="gradients are summed in the dtype of computation",
        module=LLM,
        old="reduce_dtype=work.parameters",
        new="reduce_dtype=work.compute",
    ),
)
