"""``each_step=True``: each step also begins from the reference's own state."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from pytest_gpuperf import Context, watch
from pytest_gpuperf.features.parity.records import Trace
from tests.parity.in_process import parity
from tests.parity.training import adamw, batches, build, train


def doubled(step: int, net: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Doubles the gradients of the second step."""
    for parameter in net.parameters():
        assert parameter.grad is not None
        parameter.grad *= 2 if step == 1 else 1


def trained(fault: bool = False) -> Trace:
    net = build()
    return train(net, adamw(net), batches(3), *([doubled] if fault else []))


def test_a_wrong_step_does_not_make_the_next_ones_wrong() -> None:
    report = parity().report(trained, lambda ctx: trained(True), each_step=True)
    assert any(one.key.step == 3 for one in report.verdict.wrong)
    assert report.by_step is not None
    assert {one.key.step for one in report.by_step.verdict.wrong} == {2}
    text = str(report)
    assert "each step from the reference's own state: step 1 is right (slack " in text
    assert "); step 2, gradient of head.bias is wrong; step 3 is right (slack " in text


def test_a_right_program_is_right_in_each_step() -> None:
    report = parity().check(trained, lambda ctx: trained(), each_step=True)
    assert report.by_step is not None
    assert report.by_step.slack < report.slack


class _Logistic(nn.Module):
    """A parameter whose steps of SGD follow the logistic map, which multiplies rounding."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.linspace(0.1, 0.9, 6))

    def forward(self) -> torch.Tensor:
        """Returns the loss."""
        w = self.w
        return (w**2 / 2 - 3.9 * (w**2 / 2 - w**3 / 3)).sum()


def chaotic(fault: bool = False, steps: int = 60) -> Trace:
    model = _Logistic()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with watch(model, optimizer) as trace:
        for step in range(steps):
            optimizer.zero_grad()
            model().backward()
            assert model.w.grad is not None
            model.w.grad *= 1.001 if fault and step == steps - 1 else 1
            optimizer.step()
    return trace


def test_the_last_step_of_a_chaotic_training_is_judged() -> None:
    assert parity().report(chaotic, lambda ctx: chaotic(True)).ok  # rounding alone makes other numbers
    assert parity().report(chaotic, lambda ctx: chaotic(), each_step=True).ok
    report = parity().report(chaotic, lambda ctx: chaotic(True), each_step=True)
    assert not report.ok
    assert report.by_step is not None
    assert {one.key.step for one in report.by_step.verdict.wrong} == {60}


def _split(ctx: Context) -> Trace:
    """Returns the trace of a rank that holds its rows of the parameters only."""
    whole = torch.linspace(-1, 1, 8).reshape(4, 2)
    model = nn.ParameterDict({"w": nn.Parameter(whole.chunk(ctx.world_size)[ctx.rank].clone())})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with watch(model, optimizer) as trace:
        for _ in range(3):
            optimizer.zero_grad()
            model["w"].exp().sum().backward()
            optimizer.step()
    return trace


def test_ranks_begin_from_their_parts() -> None:
    class One:
        rank, world_size = 0, 1

    report = parity().check(lambda: _split(One()), _split, each_step=True)  # type: ignore[arg-type]
    assert report.by_step is not None
    assert len(report.by_step.verdict.judged) == len(report.verdict.judged)


def test_tensors_by_name_have_no_steps() -> None:
    with pytest.raises(ValueError, match=r"each_step=True needs the traces of watch\(model, optimizer\) from refer"):
        parity().report(lambda: {"x": torch.ones(3)}, lambda ctx: {"x": torch.ones(3)}, each_step=True)


def test_causes_are_looked_for_in_the_first_wrong_tensors_only() -> None:
    def named(factor: int = 1) -> dict[str, torch.Tensor]:
        whole = torch.linspace(1, 2, 2000).reshape(500, 4) * factor
        return {f"t{index}": row for index, row in enumerate(whole)}

    report = parity().report(named, lambda ctx: named(3), samples=2)
    assert report.verdict.first is not None
    assert report.verdict.first.title == "t0"
    assert len(report.verdict.wrong) == 500
    assert sum(one.case is not None for one in report.verdict.wrong) == 24
    assert str(report).count("t499") == 0
