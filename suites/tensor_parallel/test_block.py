"""A block that is split over ranks, for timing, computes what the whole block does."""

from __future__ import annotations

import math

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from pytest_gpuperf import Context, Ranks
from suites.shared.comparison import assert_close
from suites.shared.step import Tensors, gradient_of, once
from suites.shared.traffic import Traffic
from suites.tensor_parallel.programs import block as programs

SHAPE = programs.BlockShape(sequences=2, length=5, width=24, heads=12, hidden=36, dtype=torch.float64)
# Ranks add in another order: some 100 roundings of 2**-53 of numbers below 10.
ROUNDING = 1e-12


def by_the_formula(weights: Tensors, x: torch.Tensor, grad: torch.Tensor) -> list[torch.Tensor]:
    """Output and gradients of input and weights (Vaswani et al. 2017, arXiv:1706.03762); GELU by the error function."""

    def heads(x: torch.Tensor, name: str) -> torch.Tensor:
        projected = x @ weights[f"attention.{name}.weight"].T
        return projected.view(*x.shape[:2], SHAPE.heads, -1).transpose(1, 2)

    x = x.detach().clone().requires_grad_()
    query, key, value = (heads(x, name) for name in ("query", "key", "value"))
    scores = query @ key.mT / math.sqrt(SHAPE.width / SHAPE.heads)
    later = torch.ones(SHAPE.length, SHAPE.length, dtype=torch.bool, device=x.device).triu(1)
    seen = scores.masked_fill(later, -math.inf).softmax(-1) @ value
    inner = x + seen.transpose(1, 2).flatten(2) @ weights["attention.output.weight"].T
    hidden = inner @ weights["up.weight"].T
    output = inner + (hidden * (1 + torch.erf(hidden / math.sqrt(2))) / 2) @ weights["down.weight"].T
    return [output.detach(), *torch.autograd.grad(output, [x, *weights.values()], grad)]


@pytest.mark.ranks(2, 3, 4)
def test_split_block(ranks: Ranks) -> None:
    def compare(ctx: Context) -> None:
        whole = programs.whole(ctx, SHAPE)
        weights: Tensors = dict(whole.named_parameters())
        output, of_input, *of_weights = by_the_formula(weights, *programs.inputs(ctx, SHAPE))
        expected = [output, of_input]
        for name, step in {
            "split": programs.split(ctx, shape=SHAPE),
            "whole": programs.stepping(ctx, SHAPE, whole),
        }.items():
            for turn in range(2):
                for got, right, what in zip(step(), expected, ("output", "input gradient"), strict=True):
                    assert_close(got, right, f"rank {ctx.rank}, {name}, step {turn}, {what}", atol=ROUNDING)
        for (name, weight), right in zip(weights.items(), of_weights, strict=True):
            assert_close(gradient_of(weight), right, f"rank {ctx.rank}, {name} gradient", atol=ROUNDING)

    ranks.run(compare)


@pytest.mark.ranks(2)
def test_the_parts_are_those_of_the_step(ranks: Ranks) -> None:
    """The sums alone are as many and as large as the step's, and a rank's share has half of the products."""

    def sent(ctx: Context) -> list[list[tuple[str, int]]]:
        found = []
        for program in (programs.split, programs.sums, programs.share):
            step = program(ctx, shape=SHAPE)
            step()
            with Traffic() as traffic:
                step()
            found.append([(call.name, call.size) for call in traffic.calls])
        return found

    def counted(ctx: Context) -> list[int]:
        found = []
        for step in (
            programs.share(ctx, shape=SHAPE),
            programs.stepping(ctx, SHAPE, programs.whole(ctx, SHAPE)),
        ):
            with FlopCounterMode(display=False) as counter:
                step()
            found.append(int(counter.get_total_flops()))
        return found

    for split, sums, share in ranks.run(sent):
        assert split == sums == [("all_reduce", SHAPE.summed_bytes)] * programs.SUMS
        assert share == []
    for of_share, of_whole in ranks.run(counted):
        assert ranks.world_size * of_share == of_whole


@pytest.mark.ranks(2, 3, 4)
def test_the_sums_alone_are_of_four_tensors(ranks: Ranks) -> None:
    """Each has memory of its own, as in the step, and holds the sum of what all ranks had: equal ones, R times each."""

    def summed(ctx: Context) -> tuple[list[torch.Tensor], torch.Tensor, int]:
        x, _ = programs.inputs(ctx, SHAPE)
        tensors = once(ctx, programs.sums, shape=SHAPE)
        return tensors, x.detach(), len({tensor.untyped_storage().data_ptr() for tensor in tensors})

    for rank, (tensors, x, storages) in enumerate(ranks.run(summed)):
        assert len(tensors) == storages == programs.SUMS, f"rank {rank}: {len(tensors)} sums in {storages} storages"
        for index, tensor in enumerate(tensors):
            assert_close(tensor, ranks.world_size * x, f"rank {rank}, sum {index}", rtol=ROUNDING)


@pytest.mark.ranks(2)
def test_flop_are_those_of_torchs_counter(ranks: Ranks) -> None:
    """The counter takes causal attention for whole: twice its products."""

    def counted(ctx: Context) -> int:
        step = programs.stepping(ctx, SHAPE, programs.whole(ctx, SHAPE))
        with FlopCounterMode(display=False) as counter:
            step()
        return int(counter.get_total_flops())

    of_linear = 6.0 * SHAPE.sequences * SHAPE.length * (4 * SHAPE.width**2 + 2 * SHAPE.width * SHAPE.hidden)
    attention = SHAPE.flop - of_linear
    assert attention == 6.0 * SHAPE.sequences * SHAPE.length**2 * SHAPE.width
    for total in ranks.run(counted):
        # Attention's backward multiplies five times, one of them again what forward did.
        assert of_linear <= total <= of_linear + 2.5 * attention


@pytest.mark.ranks(2)
@pytest.mark.parametrize(("what", "sizes"), [("heads", (3, 4)), ("hidden features", (4, 3))])
def test_sizes_that_the_ranks_do_not_divide_are_refused(ranks: Ranks, what: str, sizes: tuple[int, int]) -> None:
    heads, hidden = sizes
    shape = programs.BlockShape(sequences=1, length=2, width=12, heads=heads, hidden=hidden, dtype=torch.float64)
    with pytest.raises(ValueError, match=f"3 {what} cannot be split over 2 ranks: choose a multiple"):
        ranks.run(once, programs.split, shape=shape)


def test_all_processes_split_a_block_in_the_same_order() -> None:
    inner = ["attention.query", "attention.key", "attention.value", "up"]
    assert list(programs.plan()) == ["attention", *inner, "attention.output", "down"]
