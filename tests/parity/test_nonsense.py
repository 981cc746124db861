"""No cause is named of what has none: noise, other numbers, single elements."""

from __future__ import annotations

import zlib
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812  # as everybody calls it

from pytest_gpuperf import watch
from pytest_gpuperf.features.parity.records import Trace
from tests.parity.in_process import parity

NAMES = ("loss", "y", "weight", "bias", "norm", "attention", "curve", "masked")


def tensors(seed: int) -> dict[str, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    weight, bias = torch.randn(6, 8, generator=g).requires_grad_(), torch.randn(6, generator=g).requires_grad_()
    y = F.linear(torch.randn(12, 8, generator=g), weight, bias)
    loss = y.tanh().square().mean()
    loss.backward()
    q, k, v = (torch.randn(10, 2, 4, generator=g) for _ in range(3))
    scores = torch.einsum("qhd,khd->hqk", q, k).softmax(-1)
    assert weight.grad is not None
    assert bias.grad is not None
    mask = torch.randn(12, 4, generator=g) > 0
    return {
        "loss": loss.detach(),
        "y": y.detach(),
        "weight": weight.grad,
        "bias": bias.grad,
        "norm": (weight.grad.square().sum() + bias.grad.square().sum()).sqrt(),
        "attention": torch.einsum("hqk,khd->qhd", scores, v),
        "curve": torch.rand(8, generator=g).cumsum(0),
        "masked": torch.where(mask, torch.randn(12, 4, generator=g).exp(), 0.0),
    }


def spoiled(tensor: torch.Tensor, kind: str, seed: int) -> torch.Tensor:
    g = torch.Generator().manual_seed(seed)
    noise = torch.randn(tensor.shape, generator=g)
    if kind == "noise":
        return tensor * (1 + 0.05 * noise)
    if kind == "other numbers":
        return noise
    if kind == "a power":
        return tensor.sign() * tensor.abs() ** 1.1
    flat = tensor.flatten().clone()
    place = int(torch.randint(0, flat.numel(), (), generator=g))
    flat[place] = flat[place] * 1.37 + 0.11
    return flat.reshape(tensor.shape)


@pytest.mark.parametrize("alike", [True, False], ids=["ranks-alike", "ranks-apart"])
@pytest.mark.parametrize("kind", ["noise", "other numbers", "a power", "one element"])
@pytest.mark.parametrize("name", NAMES)
def test_no_cause_is_named(name: str, kind: str, alike: bool) -> None:
    seed = zlib.crc32(f"{name} {kind} {alike}".encode()) % 1000

    def program(ctx: Any) -> dict[str, torch.Tensor]:
        held = tensors(seed)
        held[name] = spoiled(held[name], kind, seed if alike else seed + 1 + ctx.rank)
        return held

    verdict = parity(2).report(lambda: tensors(seed), program).verdict
    assert verdict.first is not None
    assert verdict.first.title == name
    assert verdict.cause is None, verdict.cause


def train(seed: int, noise: float) -> Trace:
    """One step of Adam, up or down by its rate: a parameter that was constant has two values then."""
    torch.manual_seed(seed)
    linear = nn.Linear(8, 8)
    nn.init.zeros_(linear.bias)
    model = nn.Sequential(nn.LayerNorm(8), linear)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with watch(model, optimizer) as trace:
        F.mse_loss(model(torch.randn(12, 8)), torch.randn(12, 8)).backward()
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.grad += noise * parameter.grad.std() * torch.randn_like(parameter)
        optimizer.step()
    return trace


@pytest.mark.parametrize("seed", [*range(4), 21])
def test_no_cause_is_named_of_steps_of_one_length(seed: int) -> None:
    verdict = parity(2).report(lambda: train(seed, 0.0), lambda ctx: train(seed, 1.0)).verdict
    assert not verdict.ok
    assert verdict.cause is None, (verdict.explained, verdict.cause)


@pytest.mark.parametrize("seed", [0, 2, 4, 5])  # with 1, the vectors are alike
def test_no_cause_is_named_of_vectors_of_few_values(seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    whole, other = (0.01 * 1.2 ** torch.randint(0, 3, shape, generator=g).double() for shape in ((4, 4, 3), (3,)))
    held = whole.index_put((torch.tensor(1), torch.tensor(2)), other)
    verdict = parity(2).report(lambda: {"step sizes": whole}, lambda ctx: {"step sizes": held}).verdict
    assert not verdict.ok
    assert verdict.cause is None, verdict.cause


@pytest.mark.parametrize(
    ("order", "axes"), [((0, 2, 1, 3), True), ((3, 2, 1, 0), False), ((1, 0, 3, 2), False), ((2, 3, 0, 1), False)]
)
def test_axes_are_swapped_only_if_rows_became_columns(order: tuple[int, ...], *, axes: bool) -> None:
    whole = torch.randn(12, 8, generator=torch.Generator().manual_seed(3))
    report = parity(4).report(lambda: {"y": whole}, lambda ctx: {"y": whole.chunk(4)[order[ctx.rank]]})
    assert "hold each other's parts" in str(report)
    assert ("as if the axes of the mesh were swapped" in str(report)) == axes


def test_a_factor_that_no_number_of_ranks_explains_is_one_factor() -> None:
    for name in ("y", "attention", "weight", "curve", "masked"):
        report = parity(2).report(
            lambda: tensors(3), lambda ctx, name=name: tensors(3) | {name: tensors(3)[name] * 1.2345}
        )
        assert report.verdict.cause is not None
        assert report.verdict.cause.code == "one factor", name
        assert "times 1.2345 on all ranks, which no number of ranks explains" in str(report)


def test_a_report_is_short_in_a_failed_assertion() -> None:
    report = parity(2).report(lambda: tensors(3), lambda ctx: tensors(3) | {"y": tensors(4)["y"]})
    assert repr(report) == "Report(ok=False, first wrong: y)"
    assert repr(report.verdict) == "Verdict(ok=False, first=Judged(y, ok=False), cause=None)"
    assert len(repr(report.verdict.first)) < 100
