"""The whole MLP by functions alone, how ranks share what it gives, and what its tests need."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch
from torch.nn import functional

from suites.shared.step import Tensors

needs_megatron = pytest.mark.skipif(
    find_spec("megatron") is None, reason="Megatron-Core is not installed: pip install 'pytest-gpuperf[megatron]'"
)

MLP_DIMS = {"column.weight gradient": 0, "column.bias gradient": 0, "row.weight gradient": 1}
"""How an MLP's parameters and their gradients are split."""


def whole_mlp(leaves: Tensors) -> torch.Tensor:
    """The output for ``input``, with a bias for both layers or neither."""
    hidden = functional.linear(leaves["input"], leaves["column.weight"], leaves.get("column.bias")).relu()
    return functional.linear(hidden, leaves["row.weight"], leaves.get("row.bias"))
