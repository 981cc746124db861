"""Optimizers of DTensors take the steps that they take on one device."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from pytest_gpuperf import Ranks
from suites.shared.comparison import assert_close
from suites.shared.inputs import integers
from suites.tensor_parallel.programs.optimized import LAYOUTS, OPTIMIZERS, optimized
from suites.tensor_parallel.reference import DTYPE

ROUNDING = 1e-12
"""As a share of the size and in units: orders of operations differ by some 1e-16."""


@pytest.mark.ranks(3)
def test_optimizers_of_dtensors(ranks: Ranks) -> None:
    """Three steps, whose gradients have nothing in common; some lie otherwise than their parameters."""
    if torch.__version__ < "2.13":  # compared as a version
        pytest.skip(f"gradients in other layouts than their parameters' need torch 2.13, this is {torch.__version__}")
    values, *grads = (
        [integers(shape, DTYPE, seed=4 * seed + number) for number, (shape, _, _) in enumerate(LAYOUTS)]
        for seed in range(4)
    )
    got = ranks.run(optimized, values=values, grads=grads)
    for name, optimizer_of in OPTIMIZERS.items():
        own = [nn.Parameter(value.clone()) for value in values]
        optimizer = optimizer_of(own)
        for step in grads:
            for parameter, grad in zip(own, step, strict=True):
                parameter.grad = grad.clone()
            optimizer.step()
        for rank, told in enumerate(got):
            for number, (have, want) in enumerate(zip(told[name], own, strict=True)):
                where = f"rank {rank}, {name}, parameter {number}"
                assert_close(have, want.detach(), where, rtol=ROUNDING, atol=ROUNDING)
