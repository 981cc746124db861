"""Faults of the subject megatron."""

from __future__ import annotations

from benchmarks.mutants.fault import Fault

PROGRAMS = "suites.megatron.programs"
NEEDS = "megatron"

FAULTS: tuple[Fault, ...] = (
    Fault(
        name="each rank keeps its own summand of the output",
        needs=NEEDS,
        module=PROGRAMS,
        old="self.row(hidden.relu())[0]",
        new="nn.functional.linear(hidden.relu(), self.row.weight, self.row.bias)",
    ),
    Fault(
        name="a bias that is added twice",
        needs=NEEDS,
        module=PROGRAMS,
        old="self.row(hidden.relu())[0]",
        new="self.row(hidden.relu())[0]\n"
        "        if self.row.bias is not None:\n            output = output + self.row.bias",
    ),
    Fault(
        name="gradients of what is not split stay those of a part of the sequence",
        needs=NEEDS,
        gpus=True,
        module=PROGRAMS,
        old='            dist.all_reduce(result[f"{name} gradient"])\n',
        new="            pass\n",
    ),
    Fault(
        name="each rank has the vocabulary of the rank after it",
        needs=NEEDS,
        module=PROGRAMS,
        old='_load(module, ctx, {"weight": weight}, {"weight": 0})',
        new='_load(module, ctx, {"weight": weight.roll(-(len(weight) // ctx.world_size), 0)}, {"weight": 0})',
    ),
    Fault(
        name="an embedding that goes through float32",
        needs=NEEDS,
        module=PROGRAMS,
        old="        output = module(tokens)\n",
        new="        output = module(tokens).float().double()\n",
    ),
    Fault(
        name="a loss that is scaled",
        needs=NEEDS,
        gpus=True,
        module=PROGRAMS,
        old="(output * target).sum()",
        new="(output * target).sum() * 2",
    ),
    Fault(
        name="the first microbatch's target for all",
        needs=NEEDS,
        gpus=True,
        module=PROGRAMS,
        old="return model(x), partial(loss, target)",
        new="return model(x), partial(loss, batches[0][1])",
    ),
    Fault(
        name="gradients of the step before",
        needs=NEEDS,
        gpus=True,
        module=PROGRAMS,
        old="        stage.zero_grad()\n",
        new="",
    ),
    # What is raced.
    Fault(
        name="other weights and inputs on each rank",
        needs=NEEDS,
        module=PROGRAMS,
        old="manual_seed(sizes.seed)",
        new="manual_seed(sizes.seed + ctx.rank)",
    ),
    Fault(
        name="an input's gradient that adds up over the steps",
        needs=NEEDS,
        module="suites.shared.training",
        old="        x.grad = None\n        module.zero_grad()\n        output = module(x)\n",
        new="        module.zero_grad()\n        output = module(x)\n",
    ),
    Fault(
        name="DTensor's row-parallel layer that keeps the ranks' shards of the output",
        needs=NEEDS,
        module=PROGRAMS,
        old='"row": RowwiseParallel()}\n',
        new='"row": RowwiseParallel(output_layouts=torch.distributed.tensor.Shard(0))}\n',
    ),
    Fault(
        name="an embedding's gradients that add up over steps",
        module=PROGRAMS,
        old="""        module.zero_grad()
        output = module(tokens)""",
        new="        output = module(tokens)",
        needs=NEEDS,
    ),
    Fault(
        name="operations of the forward alone",
        module=PROGRAMS,
        old="return 6.0 * self.length * 2 * self.width * self.hidden",
        new="return 2.0 * self.length * 2 * self.width * self.hidden",
    ),
)
