"""The sharded model computes what one device computes, up to rounding."""

import pytest
import torch
from model import Model, shard, train

from pytest_gpuperf import watch


def build():
    torch.manual_seed(0)
    return Model()


def batches(rank=0, ranks=1):
    """Two batches of 8 sequences, or one rank's share of each."""
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(32, (8, 7), generator=generator).chunk(ranks)[rank] for _ in range(2)]


def watched(model, batches):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with watch(model, optimizer) as trace:  # outputs, gradients, optimizer states, parameters
        train(model, optimizer, batches)
    return trace


@pytest.mark.ranks(2)
def test_the_sharded_model_trains_as_one_device(parity):
    def program(ctx):  # runs on every rank
        model = shard(build().to(ctx.device), ctx.mesh((ctx.world_size,), ("dp",)))
        return watched(model, [tokens.to(ctx.device) for tokens in batches(ctx.rank, ctx.world_size)])

    parity.check(lambda: watched(build(), batches()), program)
