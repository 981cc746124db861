"""What one process computes with the tokens of all ranks."""

from __future__ import annotations

import torch

from pytest_gpuperf import Context
from suites.llm_step.programs import Trained
from suites.shared.comparison import assert_close
from suites.shared.llama import loss_of
from suites.shared.llm import Workload

# Ranks add in another order, in float64: 2**-53 a rounding, some thousand of them, and AdamW divides gradients by
# their own size. What is wrong is off by a thousandth or more: see the faults.
RTOL = 1e-9
# In float32, where a rounding is 2**-24.
SINGLE = 1e-5


def alone(ctx: Context, *, work: Workload, world_size: int, steps: int) -> Trained:
    """Runs the same training on one rank with the batches of so many, without hooks of FSDP or any other library."""
    model = work.model(ctx.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    shape = (world_size, work.sequences, work.length + 1)
    tokens = torch.randint(work.config.vocabulary, shape, generator=torch.Generator().manual_seed(work.seed))
    whole = tokens.flatten(0, 1).to(ctx.device)
    losses = []
    for _ in range(steps):
        loss = loss_of(model(whole[:, :-1]), whole[:, 1:])
        losses.append(loss.item())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return Trained(losses, {name: value.detach().cpu().clone() for name, value in model.named_parameters()})


def assert_trained_alike(got: list[Trained], expected: Trained, rtol: float = RTOL) -> None:
    """Losses first: they say in which step something went wrong.

    Raises:
        AssertionError: A rank has another loss or another parameter; names the rank, and the step or the parameter.
    """
    losses = torch.tensor(expected.losses, dtype=torch.float64)
    for rank, trained in enumerate(got):
        for step, (mine, loss) in enumerate(zip(torch.tensor(trained.losses, dtype=losses.dtype), losses, strict=True)):
            assert_close(mine, loss, f"rank {rank}, loss of step {step}", rtol=rtol)
        assert list(trained.parameters) == list(expected.parameters)
        for name, value in trained.parameters.items():
            assert_close(value, expected.parameters[name], f"rank {rank}, {name}", rtol=rtol, atol=rtol)
