"""Products of float32 in TF32: their rounding is that of the device that the ranks have, and of nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from pytest_gpuperf import watch
from pytest_gpuperf.features.parity.products import EXACT, Products, read_products
from pytest_gpuperf.features.parity.rounding import RandomRounding
from tests.parity.in_process import parity

TF32 = 2.0**-11
GPU = torch.device("cuda")


@pytest.fixture(autouse=True)
def _settings() -> Iterator[None]:
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    yield
    torch.set_float32_matmul_precision(before[0])
    torch.backends.cudnn.allow_tf32 = before[1]


def test_convolutions_and_recurrent_networks_of_gpus_are_in_tf32_by_default() -> None:
    assert read_products(GPU) == Products(0.0, TF32, TF32)
    assert read_products(torch.device("cpu")) == EXACT


def test_settings_of_torch_count() -> None:
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = False
    assert read_products(GPU) == Products(TF32, 0.0, 0.0)


def moved(call: Callable[[], torch.Tensor], products: Products) -> float:
    """How far random rounding moves a result, relative to it."""
    with RandomRounding(1, products=products):
        got = call()
    return float((got - call()).norm() / call().norm())


def recurrent() -> torch.Tensor:
    """The output of a small network of its kind."""
    torch.manual_seed(1)
    out: torch.Tensor = nn.GRU(8, 8)(torch.ones(3, 2, 8))[0].detach()
    return out


@pytest.mark.parametrize(
    ("kind", "call"),
    [
        ("matrices", lambda: torch.ones(8, 8) @ torch.ones(8, 8)),
        ("convolutions", lambda: torch.conv1d(torch.ones(1, 4, 8), torch.ones(4, 4, 3))),
        ("recurrent", recurrent),
    ],
)
def test_only_products_of_their_kind_are_rounded_more(kind: str, call: Callable[[], torch.Tensor]) -> None:
    others = Products(**{name: TF32 for name in ("matrices", "convolutions", "recurrent") if name != kind})
    coarse = moved(call, Products(**{kind: TF32}))
    assert coarse > TF32 / 8
    if kind != "recurrent":  # which are products of matrices as well
        assert moved(call, others) < coarse / 100
    assert moved(lambda: torch.ones(8).exp(), Products(TF32, TF32, TF32)) < 1e-5


def test_a_program_in_tf32_is_judged_by_its_rounding_and_one_beyond_it_is_wrong() -> None:
    torch.manual_seed(1)
    a, b = torch.randn(16, 16), torch.randn(16, 16)

    def program(factor: float) -> Callable[[Any], Any]:
        def run(ctx: Any) -> Any:
            model = nn.Linear(16, 16, bias=False)
            model.weight.data.copy_(b)
            with watch(model) as trace:
                model(a * factor)
            trace.products = read_products(GPU) if factor else EXACT
            return trace

        return run

    torch.set_float32_matmul_precision("high")
    reference = program(1.0)
    for factor, right in ((1 + TF32 / 2, True), (1.05, False)):
        assert parity().report(lambda: reference(None), program(factor)).ok is right


class Pair(torch.autograd.Function):
    """Two outputs, of which one may have no gradient."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns it twice."""
        ctx.set_materialize_grads(False)
        return x * 1, x * 2

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        """Returns the first gradient."""
        return gradients[0]


class Both(nn.Module):
    """A module of two outputs."""

    def forward(self, x: torch.Tensor) -> Any:
        """Returns both."""
        return Pair.apply(x)  # type: ignore[no-untyped-call]


def test_an_output_without_a_gradient_has_none_in_the_trace() -> None:
    model = Both()
    x = torch.ones(2, requires_grad=True)
    with watch(model) as trace:
        model(x)[0].sum().backward()
    assert [str(record.key.kind) for record in trace if "gradient" in str(record.key.kind)] == ["output gradient"]
