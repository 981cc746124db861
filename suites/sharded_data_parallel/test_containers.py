"""Tensors in containers are cast as those outside of them, each in its place, and get their gradients."""

from __future__ import annotations

import pytest
import torch
from torch.distributed.fsdp import MixedPrecisionPolicy, _common_utils

from pytest_gpuperf import Ranks
from suites.sharded_data_parallel.programs.containers import LEAVES, multiplied
from suites.shared.comparison import assert_close, assert_each
from suites.shared.inputs import integers

WIDTH = 3
KINDS = ["Pair", "list", "Point", "dict", "OrderedDict", "tuple", "int"]


@pytest.mark.skipif(
    not hasattr(_common_utils, "collect_grad_tensors"),
    reason=f"torch {torch.__version__} looks for no gradients in dataclasses",
)
@pytest.mark.ranks(2)
def test_containers(ranks: Ranks) -> None:
    """bfloat16 computes with whole numbers of few bits, and float32 leaves the module."""
    values = integers((2, LEAVES, WIDTH), torch.float32, seed=1, low=-3, high=3)
    weight = integers((WIDTH,), torch.float32, seed=2, low=1, high=3)
    policy = MixedPrecisionPolicy(torch.bfloat16, reduce_dtype=torch.float32, output_dtype=torch.float32)
    numbers = torch.arange(1.0, LEAVES + 1)[:, None]
    leaves = [list(of_rank) for of_rank in values]
    for way in ("by place", "by name", "by name to a method"):
        for rank, seen in enumerate(ranks.run(multiplied, way=way, leaves=leaves, weight=weight, policy=policy)):
            where = f"rank {rank}, {way}"
            assert seen.dtypes == [torch.bfloat16] * LEAVES + [torch.int64], f"{where}: inputs in {seen.dtypes}"
            assert seen.kinds == KINDS, f"{where}: {seen.kinds}"
            assert_each(seen.outputs, list(values[rank] * weight * numbers), f"{where}, output")
            assert_each(
                seen.input_gradients, list((weight * numbers).expand(LEAVES, WIDTH)), f"{where}, input gradient"
            )
            assert_close(seen.gradient, (values * numbers).sum(1).mean(0), f"{where}, gradient of the weight")
