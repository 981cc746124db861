"""How long a gathered matrix product takes."""

import pytest
import torch
from gather import gathered_product


def program(ctx, *, width):  # prepares the inputs, then returns the step that is timed
    x = torch.ones(64, width, device=ctx.device)
    share = torch.full((width // ctx.world_size, width), float(ctx.rank + 1), device=ctx.device)
    return lambda: gathered_product(x, share)


def verify(ctx, output, steps):  # a step that computes nothing is fast
    rows = sum(rank + 1 for rank in range(ctx.world_size)) / ctx.world_size
    assert torch.all(output == rows * output.shape[1])


@pytest.mark.perf
@pytest.mark.ranks(2)
def test_gathered_product(perf):
    width = perf.sized(8192 if torch.cuda.is_available() else 512, smoke=32)
    timing = perf.measure(program, verify=verify, width=width)
    perf.check(time=timing.time)
