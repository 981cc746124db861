"""Collectives and messages of complex numbers give what they give of real ones, and messages from anybody arrive."""

from __future__ import annotations

import pytest
import torch

from pytest_gpuperf import Ranks
from suites.collectives.programs import complex_numbers
from suites.shared.comparison import assert_same
from suites.shared.inputs import rank_inputs
from suites.shared.step import Tensors


@pytest.mark.ranks(3)
@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=["complex64", "complex128"])
def test_complex_numbers(ranks: Ranks, dtype: torch.dtype) -> None:
    """The root is neither the first rank nor the last."""
    real, imaginary = (rank_inputs(3, shape=(6, 2), dtype=torch.float64, seed=seed) for seed in (1, 2))
    xs = [torch.complex(a, b).to(dtype) for a, b in zip(real, imaginary, strict=True)]
    stacked = torch.stack(xs)
    total, whole = stacked.sum(0), torch.cat(xs)
    expected: list[Tensors] = []
    for rank in range(3):
        mine = slice(2 * rank, 2 * rank + 2)
        expected.append(
            {
                "all_reduce": total,
                "broadcast": xs[1],
                "all_gather": whole,
                "all_gather_into_tensor": whole,
                "reduce_scatter": total[mine],
                "reduce_scatter_tensor": total[mine],
                "all_to_all_single": stacked[:, mine].flatten(0, 1),
                "batch_isend_irecv": xs[rank - 1],
                **({"reduce": total} if rank == 1 else {}),
                **({"recv": xs[1]} if rank == 2 else {}),
            }
        )
    assert_same(ranks.run(complex_numbers.collectives, xs=xs, root=1), expected)


@pytest.mark.ranks(3, device="cpu")  # NCCL has no messages from anybody
def test_messages_from_anybody(ranks: Ranks) -> None:
    xs = rank_inputs(3, shape=(5,), dtype=torch.float64, seed=3)
    expected = {f"{tag} from {rank}": (1 + tag) * xs[rank] for tag in (0, 1) for rank in (1, 2)}
    assert_same(ranks.run(complex_numbers.from_anybody, xs=xs), [expected, {}, {}], ordered=False)
