"""torch's other hooks average gradients that they can represent exactly; local ones average over whom they should."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given

from pytest_gpuperf import Ranks
from suites.compression.programs.hooks import STARTS, steps
from suites.shared.comparison import assert_close
from suites.shared.inputs import integers
from suites.shared.strategies import seeds

STEPS = 4


def assert_steps(got: list[list[list[torch.Tensor]]], expected: list[list[torch.Tensor]]) -> None:
    """Each rank's gradient in each step: ``expected`` by step and rank."""
    for rank, of_rank in enumerate(got):
        for step, (gradient,) in enumerate(of_rank):
            assert_close(gradient, expected[step][rank], f"rank {rank}, step {step + 1}, gradient")


@pytest.mark.ranks(2)
@pytest.mark.examples(0.06)
@pytest.mark.parametrize("hook", ["float16", "bfloat16"])
@given(seed=seeds)
def test_what_sixteen_bits_hold(ranks: Ranks, hook: str, seed: int) -> None:
    """Twice a whole number of 6 bits, on each of two ranks: half of their sum has 8 bits at most.

    bfloat16 holds them times 2**80 too, and float16 times 2**-24: beyond its normal numbers, each divides 2**-24.
    """
    scale = 2.0**80 if hook == "bfloat16" else 2.0**-24
    gradients = [2 * integers((3, 8), torch.float32, seed=seed * 8 + rank, low=-63, high=63) for rank in range(2)]
    gradients = [torch.cat([gradient, gradient * scale]) for gradient in gradients]
    mean = torch.stack(gradients).mean(0)
    got = ranks.run(steps, hook=hook, gradients=[[gradient] for gradient in gradients], number=STEPS)
    assert_steps(got, [[mean] * 2] * STEPS)


@pytest.mark.ranks(4)
@pytest.mark.parametrize("hook", ["local", "own", "local in float16", "pairs", "pairs in bfloat16", "pairs in float32"])
def test_local_gradients(ranks: Ranks, hook: str) -> None:
    """All ranks in the first steps; then pairs of neighbours, or nobody else. Or pairs from the first step on."""
    gradients = [4 * integers((3, 8), torch.float32, seed=1 + rank) for rank in range(4)]
    mean = torch.stack(gradients).mean(0)
    pairs = [torch.stack(gradients[rank // 2 * 2 : rank // 2 * 2 + 2]).mean(0) for rank in range(4)]
    after = gradients if hook == "own" else pairs
    got = ranks.run(steps, hook=hook, gradients=[[gradient, 2 * gradient] for gradient in gradients], number=STEPS)
    for bucket, factor in enumerate((1, 2)):
        of_steps = [[mean] * 4 if step < STARTS.get(hook, 0) else after for step in range(STEPS)]
        expected = [[factor * gradient for gradient in of_step] for of_step in of_steps]
        assert_steps([[[step[bucket]] for step in of_rank] for of_rank in got], expected)
