"""Ranks that share the batches learn what one process learns from all of them."""

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from training import train


def build():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))


def batches(rank=0, ranks=1):
    """Four batches of 12 samples, or one rank's share of each."""
    generator = torch.Generator().manual_seed(1)
    whole = [(torch.randn(12, 8, generator=generator), torch.randn(12, 4, generator=generator)) for _ in range(4)]
    return [(inputs.chunk(ranks)[rank], targets.chunk(ranks)[rank]) for inputs, targets in whole]


@pytest.mark.ranks(2, 4)  # one test on 2 ranks, one on 4
@pytest.mark.parametrize("accumulate", [1, 2])
def test_ranks_learn_what_one_process_learns(ranks, accumulate):
    def program(ctx):  # runs on every rank, in a process group
        model = DistributedDataParallel(build().to(ctx.device))
        share = [(x.to(ctx.device), y.to(ctx.device)) for x, y in batches(ctx.rank, ctx.world_size)]
        train(model, share, accumulate=accumulate)
        return dict(model.module.named_parameters())

    single = build()
    train(single, batches(), accumulate=accumulate)
    for learnt in ranks.run(program):  # in rank order, tensors on the CPU
        torch.testing.assert_close(learnt, dict(single.named_parameters()))
