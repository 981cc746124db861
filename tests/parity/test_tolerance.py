"""The tolerance: what is just above the slack is seen, what another order of sums does is not, whatever the dtype."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.parity.in_process import parity

DTYPES = [torch.float64, torch.float32, torch.bfloat16]


def product(dtype: torch.dtype, blocks: int = 1) -> torch.Tensor:
    """A product of matrices, added up in blocks of the inner dimension, the last one first."""
    g = torch.Generator().manual_seed(3)
    a, b = torch.randn(24, 64, generator=g).to(dtype), torch.randn(64, 16, generator=g).to(dtype)
    parts = [x @ y for x, y in zip(a.chunk(blocks, 1), b.chunk(blocks), strict=True)][::-1]
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total / 8


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_another_order_of_sums_is_rounding(dtype: torch.dtype) -> None:
    for blocks in (2, 4, 16):
        report = parity().report(lambda: {"y": product(dtype)}, lambda ctx, n=blocks: {"y": product(dtype, n)})
        assert report.ok, str(report)
        assert 0 < report.strain < 1


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_fault_above_the_slack_is_seen_and_one_far_below_is_not(dtype: torch.dtype) -> None:
    slack = parity().report(lambda: {"y": product(dtype)}, lambda ctx: {"y": product(dtype)}).slack
    unit = torch.finfo(dtype).eps
    assert unit / 4 < slack < 40 * unit

    def scaled(factor: float) -> Any:
        return lambda ctx: {"y": product(dtype).double() * factor}

    assert not parity().report(lambda: {"y": product(dtype)}, scaled(1 + 1.5 * slack)).ok
    assert parity().report(lambda: {"y": product(dtype)}, scaled(1 + slack / 8)).ok


def test_one_wrong_element_is_seen_although_the_norm_hides_it() -> None:
    y = product(torch.float32)
    slack = parity().report(lambda: {"y": y + 0}, lambda ctx: {"y": y}).slack
    limit = slack * float(y.norm())
    changed = y.clone()
    changed[3, 5] += 0.7 * limit
    assert float((changed - y).norm()) < limit
    report = parity().report(lambda: {"y": product(torch.float32)}, lambda ctx: {"y": changed})
    assert not report.ok
    assert "wrong only at 3 to 3 of 24 along dimension 0" in str(report)


def test_a_program_in_bfloat16_is_judged_by_its_own_rounding() -> None:
    def program(ctx: Any) -> dict[str, torch.Tensor]:
        return {"y": product(torch.bfloat16).float()}

    assert not parity().report(lambda: {"y": product(torch.float32)}, program).ok
    assert parity().report(lambda: {"y": product(torch.float32)}, program, precision=torch.bfloat16).ok
