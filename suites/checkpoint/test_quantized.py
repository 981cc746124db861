"""Weights of 8 or 4 bits become the products that the format defines, whatever part of them a rank reads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from pytest_gpuperf import Ranks
from suites.checkpoint.programs import quantized as programs
from suites.checkpoint.programs.hugging_face import INDEX
from suites.shared.comparison import assert_same
from suites.shared.inputs import integers
from suites.shared.step import Tensors

safetensors = pytest.importorskip("safetensors", reason="safetensors is not installed: pip install safetensors")

BLOCK = 4
FP4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
"""OCP Microscaling Formats (MX) Specification 1.0, section 5.3.3: E2M1."""
BIAS = 127
"""A scale of 8 bits has this bias of its exponent, section 5.4.1 there."""

pytestmark = pytest.mark.ranks(3)


def in_blocks(shape: tuple[int, int], seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Whole numbers in float8, the scale of each block, and the products."""
    weight = integers(shape, torch.float32, seed=seed).clamp(-8, 8)
    scales = 2.0 ** integers(((shape[0] - 1) // BLOCK + 1, (shape[1] - 1) // BLOCK + 1), torch.float32, seed=seed + 1)
    rows, columns = (torch.arange(size) // BLOCK for size in shape)
    return weight.to(torch.float8_e4m3fn), scales, weight * scales[rows][:, columns]


def in_groups(shape: tuple[int, int, int, int], seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Two numbers in each byte, the lower half first; the exponent of each group of bytes; and the numbers."""
    generator = torch.Generator().manual_seed(seed)
    blocks = torch.randint(256, shape, generator=generator, dtype=torch.uint8)
    scales = torch.randint(BIAS - 3, BIAS + 4, shape[:-1], generator=generator, dtype=torch.uint8)
    halves = torch.stack([blocks % 16, blocks // 16], dim=-1).flatten(-2).long()
    numbers = torch.tensor(FP4)[halves] * 2.0 ** (scales.float() - BIAS)[..., None]
    return blocks, scales, numbers.flatten(-2)


def written(folder: Path) -> Tensors:
    """Writes two files, and returns what the numbers in them are."""
    from safetensors.torch import save_file

    first, first_scales, first_numbers = in_blocks((11, 9), seed=1)
    second, second_scales, second_numbers = in_blocks((6, 10), seed=3)
    blocks, scales, numbers = in_groups((4, 5, 4, 2), seed=5)
    plain = integers((5, 2), torch.float32, seed=7)
    files = {
        "1.safetensors": {"a.weight": first, "a.weight_scale_inv": first_scales, "b.weight": second, "plain": plain},
        "2.safetensors": {"b.weight_scale_inv": second_scales, "c_blocks": blocks, "c_scales": scales},
    }
    for file, tensors in files.items():
        save_file(tensors, folder / file)
    weight_map = {name: file for file, tensors in files.items() for name in tensors}
    (folder / INDEX).write_text(json.dumps({"weight_map": weight_map}), encoding="utf-8")
    return {"a.weight": first_numbers, "b.weight": second_numbers, "c_blocks": numbers, "plain": plain}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "dims",
    [
        {"a.weight": 0, "b.weight": 0, "c_blocks": 0, "plain": 0},
        {"a.weight": 1, "b.weight": 1, "c_blocks": 1},
        {"c_blocks": 2},
    ],
    ids=["rows", "columns", "within groups"],
)
def test_shards_of_quantized_weights(ranks: Ranks, tmp_path: Path, dims: dict[str, int], dtype: torch.dtype) -> None:
    expected = {name: value.to(dtype) for name, value in written(tmp_path).items()}
    shapes = {name: tuple(value.shape) for name, value in expected.items()}
    got = ranks.run(programs.dequantized, shapes=shapes, dims=dims, folder=tmp_path, block=BLOCK, dtype=dtype)
    assert_same(got, [expected] * 3)
