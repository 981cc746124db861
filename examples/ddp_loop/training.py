"""A training loop that accumulates gradients over several batches."""

from contextlib import nullcontext

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def train(model, batches, *, accumulate=1, lr=0.1):
    """Trains on (inputs, targets); the optimizer steps after every ``accumulate`` batches."""
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for number, (inputs, targets) in enumerate(batches, start=1):
        steps = number % accumulate == 0
        distributed = isinstance(model, DistributedDataParallel)
        with model.no_sync() if distributed and not steps else nullcontext():
            loss = nn.functional.mse_loss(model(inputs), targets)
            (loss / accumulate).backward()
        if steps:
            optimizer.step()
            optimizer.zero_grad()
