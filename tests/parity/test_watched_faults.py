"""Causes that only a watched loop shows: data, masks, clipping, inference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import nn

from pytest_gpuperf import watch
from pytest_gpuperf.features.parity.records import Trace
from pytest_gpuperf.features.parity.report import Report
from tests.parity.in_process import parity


def draw(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


class Net(nn.Module):
    """Two weights, of which a rank may hold rows of the first."""

    def __init__(self, rows: slice = slice(None)) -> None:
        super().__init__()
        self.split, self.copied = nn.Parameter(draw(1, 8, 5)[rows] / 2), nn.Parameter(draw(2, 8) / 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = torch.tanh(x @ self.split.T) + self.copied
        return out


def trained(
    data: Sequence[int] = (3, 4, 5),
    change: Callable[[Net, torch.optim.Optimizer], None] = lambda net, optimizer: None,
    weigh: Callable[[torch.Tensor], torch.Tensor] = lambda out: out.square().mean(),
    make: Callable[[Any], torch.optim.Optimizer] = lambda parameters: torch.optim.SGD(parameters, lr=0.1),
) -> Trace:
    """Trains on drawn data; ``change`` sees the gradients before the update."""
    net = Net()
    optimizer = make(net.parameters())
    with watch(net, optimizer) as trace:
        for seed in data:
            optimizer.zero_grad()
            weigh(net(draw(seed, 6, 5))).backward()
            change(net, optimizer)
            optimizer.step()
    return trace


def clips(square: Callable[[float, float], float]) -> Callable[[Net, torch.optim.Optimizer], None]:
    """Clips by a norm whose square is made of those of the two gradients."""

    def change(net: Net, _: torch.optim.Optimizer) -> None:
        squares = [one.grad.square().sum() for one in net.parameters() if one.grad is not None]
        factor = 0.1 / torch.as_tensor(square(*squares)).sqrt()  # type: ignore[arg-type]
        for one in net.parameters():
            assert one.grad is not None
            one.grad *= factor

    return change


def right(split: float, copied: float) -> float:
    return split + copied


def test_data_that_were_skipped_are_named() -> None:
    found = parity(2).report(trained, lambda ctx: trained((3, 5, 6))).verdict
    assert found.first is not None
    assert found.first.title == "step 2, input of (model)"
    assert found.cause is not None
    assert found.cause.code == "position"
    assert "it is that of step 3: data were skipped" in found.cause.text


def test_data_that_come_again_are_named() -> None:
    report = parity(2).report(trained, lambda ctx: trained((3, 4, 3)))
    assert "first wrong: step 3, input of (model)" in str(report)
    assert "it is that of step 1: data come again, as if the state of a sampler or a loader was lost" in str(report)


def test_a_mask_of_other_elements_is_found_in_the_output_s_gradient() -> None:
    def kept(which: slice) -> Callable[[torch.Tensor], torch.Tensor]:
        return lambda out: out[which].square().sum() / 4

    report = parity(2).report(lambda: trained(weigh=kept(slice(0, 4))), lambda ctx: trained(weigh=kept(slice(2, 6))))
    assert "first wrong: step 1, output gradient of (model)" in str(report)
    assert "a mask keeps the wrong elements" in str(report)


def test_a_count_of_steps_that_was_rounded_is_not_called_lost() -> None:
    def resumed(dtype: torch.dtype) -> Callable[[Net, torch.optim.Optimizer], None]:
        def change(net: Net, optimizer: torch.optim.Optimizer) -> None:
            for state in optimizer.state.values():
                state["step"] = (state["step"] + 300).to(dtype) if state["step"] < 300 else state["step"]

        return change

    def run(dtype: torch.dtype) -> Trace:
        return trained(change=resumed(dtype), make=torch.optim.Adam)

    report = parity(2).report(lambda: run(torch.float32), lambda ctx: run(torch.bfloat16))
    assert "first wrong: step 2, state of split.step" in str(report)
    assert "every element is a number of bfloat16" in str(report)


WRONG_NORMS: dict[str, tuple[Callable[[float, float], float], str]] = {
    "copies": (lambda split, copied: 2 * (split + copied), "every square is counted 2 times, as if copies were parts"),
    "no weight": (lambda split, copied: copied, "squares of split are left out"),
    "one weight twice": (lambda split, copied: split + 2 * copied, "squares of copied are counted 2 times"),
}


@pytest.mark.parametrize("name", WRONG_NORMS)
def test_a_wrong_norm_of_copies_is_named(name: str) -> None:
    square, text = WRONG_NORMS[name]
    report = parity(2).report(lambda: trained(change=clips(right)), lambda ctx: trained(change=clips(square)))
    assert "first wrong: step 1, gradient of copied" in str(report)
    assert f"the norm that gradients are clipped by is wrong: {text}" in str(report)


def of_shards(square: Callable[[float, float, float], float]) -> Report:
    """The report of ranks that hold halves of one weight, and clip by a norm of both halves and the copied weight."""

    def program(ctx: Any) -> Trace:
        whole, net = Net(), Net(slice(4 * ctx.rank, 4 * ctx.rank + 4))
        whole(draw(3, 6, 5)).square().mean().backward()
        assert whole.split.grad is not None
        assert whole.copied.grad is not None
        own, other = whole.split.grad.chunk(2)[ctx.rank], whole.split.grad.chunk(2)[1 - ctx.rank]
        squares = (own.square().sum(), other.square().sum(), whole.copied.grad.square().sum())
        factor = 0.1 / torch.as_tensor(square(*squares)).sqrt()  # type: ignore[arg-type]
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        with watch(net, optimizer) as trace:
            net.split.grad, net.copied.grad = own * factor, whole.copied.grad * factor
            optimizer.step()
        return trace

    return parity(2).report(lambda: trained((3,), clips(right)), program)


def test_a_right_norm_of_shards_passes() -> None:
    assert of_shards(lambda own, other, copied: own + other + copied).ok


def test_shards_that_are_averaged_in_the_norm_are_named() -> None:
    report = of_shards(lambda own, other, copied: (own + other) / 2 + copied)
    assert "squares of parameters that ranks hold parts of are averaged over 2 ranks; they must be summed" in str(
        report
    )


def test_a_norm_of_each_rank_s_own_parts_is_named() -> None:
    report = of_shards(lambda own, other, copied: own + copied)
    assert "each rank clips by the norm of its own parts: add up the squares over the ranks first" in str(report)


def test_a_factor_without_clipping_stays_a_factor() -> None:
    def halved(net: Net, _: torch.optim.Optimizer) -> None:
        for one in net.parameters():
            assert one.grad is not None
            one.grad *= 0.5

    cause = parity(2).report(trained, lambda ctx: trained(change=halved)).verdict.cause
    assert cause is not None
    assert cause.code == "factor"


def inferred(scale: float = 1.0, rows: slice = slice(None)) -> Trace:
    net = Net()
    with watch(net) as trace, torch.no_grad():
        net.split.mul_(scale)
        net(draw(3, 8, 5)[rows])
    return trace


def test_a_wrong_result_of_inference_is_caught() -> None:
    assert parity(2).report(inferred, lambda ctx: inferred()).ok
    found = parity(2).report(inferred, lambda ctx: inferred(1.01)).verdict
    assert found.first is not None
    assert found.first.title == "step 1, result of (model)"


def test_a_batch_may_be_dealt_by_the_axes_in_their_other_order() -> None:
    def program(ctx: Any, other: int) -> Trace:
        place = ctx.rank % 2 * 2 + ctx.rank // 2
        return inferred(1.0 if ctx.rank != other else 2.0, slice(2 * place, 2 * place + 2))

    assert parity(4).report(inferred, program, -1).ok
    report = parity(4).report(inferred, program, 1)
    assert "ranks 0, 2 and 3 are right, rank 1 wrong" in str(report)


def test_a_watch_that_saw_nothing_is_refused() -> None:
    def nothing() -> Trace:
        with watch(Net(), activations=False) as trace:
            pass
        return trace

    with pytest.raises(ValueError, match="saw no gradient and no output: call the model within it, and leave"):
        parity(2).check(nothing, lambda ctx: nothing())


def test_a_wrapper_s_output_counts_once() -> None:
    def run(wrap: bool) -> Trace:
        net = nn.ModuleDict({"module": Net()})
        outer = _Wrapper(net["module"]) if wrap else net["module"]
        with watch(outer) as trace, torch.no_grad():
            outer(draw(3, 8, 5))
        return trace

    assert parity(2).report(lambda: run(False), lambda ctx: run(True)).ok


class _Wrapper(nn.Module):
    """Wraps a model as DistributedDataParallel does."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: torch.Tensor) -> Any:
        return self.module(x)


def test_zeros_are_no_blocks_in_another_order() -> None:
    whole = torch.cat([draw(3, 6, 3), torch.zeros(2, 3)])
    report = parity(2).report(lambda: {"y": whole}, lambda ctx: {"y": draw(4, 8, 3) * ctx.rank})
    assert report.verdict.cause is None
