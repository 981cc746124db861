"""Torch's samplers divide the samples among the ranks, in another order in each epoch."""

from __future__ import annotations

from typing import Any

from torch.distributed.elastic.utils.data import ElasticDistributedSampler
from torch.utils.data.distributed import DistributedSampler

from pytest_gpuperf import Context

Epochs = list[list[int]]
"""The numbers of a rank's samples, in each epoch."""


def shared_out(ctx: Context, *, samples: int, epochs: int, drop_last: bool, seed: int = 1) -> Epochs:
    """The rank's samples; what is left over is dropped, or some samples are given twice."""
    return _drawn(DistributedSampler(range(samples), drop_last=drop_last, seed=seed), epochs)  # type: ignore[arg-type]


def in_order(ctx: Context, *, samples: int, epochs: int, drop_last: bool, replicas: int, first: int) -> Epochs:
    """Samples that are not shuffled, of the replica that comes so many after the first as the rank's number is."""
    data: Any = range(samples)
    sampler: DistributedSampler[int] = DistributedSampler(
        data, num_replicas=replicas, rank=first + ctx.rank, drop_last=drop_last, shuffle=False
    )
    return _drawn(sampler, epochs)


def resumed(ctx: Context, *, samples: int, first: int, epochs: int) -> Epochs:
    """The rank's samples, if training goes on with those from the first on."""
    return _drawn(ElasticDistributedSampler(range(samples), start_index=first), epochs)  # type: ignore[arg-type]


def _drawn(sampler: DistributedSampler[int], epochs: int) -> Epochs:
    drawn = []
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        drawn.append(list(sampler))
    return drawn
