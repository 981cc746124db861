"""However activations get to backward, output, gradients and new parameters are the same; and memory is as promised.

Inputs, weights and output gradients are whole numbers in float64: nothing is rounded, and results are equal.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from pytest_gpuperf import Context, Ranks
from suites.activations import programs
from suites.data import integers, once
from suites.strategies import seeds, worlds

DTYPE = torch.float64

# Nothing is rounded: inputs are at most 3, weights 2; with 4 hidden and 3 other features a block multiplies an
# input or a gradient by at most 3 * 2 * 4 * 2 = 48. After 3 blocks both are at most 3 * 48**3 < 2**19, and a
# weight's gradient, the sum over 3 rows of a product of an input and a gradient, is below 2**40.
EXACT = 0.0

Arguments = dict[str, Any]
Result = dict[str, torch.Tensor]


def arguments(*, blocks: int, rows: int, width: int, hidden: int, dropout: bool, seed: int) -> Arguments:
    """What all ranks are given; each makes its own input and gradient of it in ``own``."""
    weights = [
        (
            integers((hidden, width), DTYPE, seed=seed * 16 + 2 * index, low=-2, high=2),
            integers((width, hidden), DTYPE, seed=seed * 16 + 2 * index + 1, low=-2, high=2),
        )
        for index in range(blocks)
    ]
    return {"weights": weights, "dropout": dropout, **own(0, rows, width, seed)}


def own(rank: int, rows: int, width: int, seed: int) -> Arguments:
    """A rank's input and the gradient of its output."""
    x, grad = (integers((rows, width), DTYPE, seed=seed * 64 + 2 * rank + i, low=-3, high=3) for i in range(2))
    return {"x": x, "grad": grad}


def reference(given: Arguments, masks: list[torch.Tensor]) -> Result:
    """By the chain rule, written out: neither autograd nor the suite's module takes part."""
    inputs, hidden = [given["x"]], []
    for index, (first, second) in enumerate(given["weights"]):
        before = inputs[-1] @ first.T
        mask = masks[index] if masks else torch.ones_like(before)
        hidden.append((before, mask))
        inputs.append((before.clamp(min=0) * mask) @ second.T)
    grad = given["grad"]
    gradients: Result = {}
    for index in reversed(range(len(hidden))):
        (first, second), (before, mask) = given["weights"][index], hidden[index]
        gradients[f"{index}.second"] = grad.T @ (before.clamp(min=0) * mask)
        grad = (grad @ second) * mask * (before > 0)
        gradients[f"{index}.first"] = grad.T @ inputs[index]
        grad = grad @ first
    expected = {"output": inputs[-1], "input gradient": grad}
    for index, pair in enumerate(given["weights"]):
        for name, weight in zip(("first", "second"), pair, strict=True):
            gradient = gradients[f"{index}.{name}"]
            expected[f"{index}.{name} gradient"] = gradient
            expected[f"{index}.{name} after the step"] = weight - programs.LEARNING_RATE * gradient
    return expected


def assert_same(got: Result, given: Arguments, where: str) -> None:
    masks = [got[f"mask {index}"] for index in range(len(given["weights"]))] if given["dropout"] else []
    expected = reference(given, masks)
    assert set(got) == {*expected, *(f"mask {index}" for index in range(len(masks)))}
    for name, tensor in expected.items():
        assert_close(got[name], tensor, f"{where}, {name}")


def assert_close(got: torch.Tensor, expected: torch.Tensor, where: str) -> None:
    if not torch.equal(got, expected):  # 20 times as quick, and most are
        torch.testing.assert_close(got, expected, rtol=0, atol=EXACT, msg=lambda text: f"{where}: {text}")


def reseed(ctx: Context, seed: int) -> None:
    """Every technique draws the same masks; sharding needs them on all ranks."""
    torch.default_generator.manual_seed(seed)
    if ctx.device.type == "cuda":
        torch.cuda.manual_seed(seed)


def every_technique(ctx: Context, *, each: list[Arguments], seed: int, steps: int) -> list[dict[str, Result]]:
    """Steps of all techniques, each on the rank's own input but for ``shard``, whose ranks work on the first's."""
    prepared = {
        name: programs.train(ctx, technique=technique, **each[0 if name == "shard" else ctx.rank])
        for name, technique in programs.TECHNIQUES.items()
    }
    if ctx.world_size % 2 == 0:
        prepared["lend"] = programs.lend(ctx, **each[ctx.rank])
    results: list[dict[str, Result]] = []
    for _ in range(steps):
        results.append({})
        for name, step in prepared.items():
            reseed(ctx, seed)
            results[-1][name] = {key: tensor.clone() for key, tensor in step().items()}
    return results


def kept_and_others(ctx: Context, **kwargs: Any) -> tuple[Result, Result, torch.Tensor]:
    """What keeping gives; what others give unlike it, as ``technique, name``; and all of sharding's as one vector.

    Everything is equal if it is right. To hand over all tensors of all would take longer than the rest of the test.
    """
    (results,) = every_technique(ctx, steps=1, **kwargs)
    kept, sharded = results.pop("keep"), results.pop("shard")
    if not programs.lends(ctx):
        results.pop("lend", None)
    unlike = {
        f"{technique}, {name}": result[name]
        for technique, result in results.items()
        for name in kept
        if not torch.equal(result[name], kept[name])
    }
    return kept, unlike, flat(sharded)


def flat(result: Result) -> torch.Tensor:
    return torch.cat([tensor.reshape(-1) for _, tensor in sorted(result.items())])


def inputs_of(world: Ranks, *, rows: int, width: int, seed: int, **sizes: Any) -> list[Arguments]:
    common = arguments(rows=rows, width=width, seed=seed, **sizes)
    return [common | own(rank, rows, width, seed) for rank in range(world.world_size)]


@pytest.mark.ranks(2, 4)
@given(
    data=st.data(),
    blocks=st.integers(1, 3),
    rows=st.integers(1, 3),
    width=st.integers(1, 3),
    hidden=st.integers(1, 4),
    dropout=st.booleans(),
    seed=seeds,
)
def test_every_technique_gives_the_same(ranks: Ranks, data: st.DataObject, seed: int, **sizes: Any) -> None:
    world = data.draw(worlds(ranks))
    each = inputs_of(world, seed=seed, **sizes)
    for rank, (kept, unlike, sharded) in enumerate(world.run(kept_and_others, each=each, seed=seed)):
        assert_same(kept, each[rank], f"rank {rank}, keep")
        for where, tensor in unlike.items():
            assert_close(tensor, kept[where.partition(", ")[2]], f"rank {rank}, {where}")
        if rank == 0:
            first = kept  # whose input the ranks that shard work on
        assert_close(sharded, flat(first), f"rank {rank}, shard")


@pytest.mark.ranks(2)
def test_a_second_step_repeats_the_first(ranks: Ranks) -> None:
    each = inputs_of(ranks, blocks=2, rows=3, width=2, hidden=4, dropout=True, seed=1)
    for first, second in ranks.run(every_technique, each=each, seed=1, steps=2):
        assert {"lend", *programs.TECHNIQUES} == set(first)
        for name, result in first.items():
            for key, tensor in result.items():
                assert_close(second[name][key], tensor, f"{name}, {key}")


@pytest.mark.ranks(2)
def test_memory_is_as_promised(ranks: Ranks) -> None:
    blocks, rows, width, hidden = 6, 64, 32, 128
    given = arguments(blocks=blocks, rows=rows, width=width, hidden=hidden, dropout=True, seed=1)
    taken = {name: ranks.run(programs.memory, technique=name, **given) for name in [*programs.TECHNIQUES, "lend"]}
    # ReLU, mask and product of each block, and the block's input, of which the first is there in any case.
    own_hidden, own_inputs = 3 * blocks * rows * hidden * DTYPE.itemsize, (blocks - 1) * rows * width * DTYPE.itemsize
    first_input = rows * width * DTYPE.itemsize
    kept = {name: [memory.kept for memory in each] for name, each in taken.items()}
    assert kept == {
        "keep": [own_hidden + own_inputs] * 2,
        "recompute": [own_inputs] * 2,
        "offload": [0] * 2,
        "shard": [(own_hidden + own_inputs + first_input) // 2] * 2,
        "lend": [0, own_hidden + own_inputs + first_input],
    }
    # What the allocator counts, too, on GPUs; without, all of these are the same None.
    peaks = {name: (each[0].peak, each[0].allocated or each[0].peak) for name, each in taken.items()}
    for name in ("recompute", "offload", "shard", "lend"):
        assert all(less < more for less, more in zip(peaks[name], peaks["keep"], strict=True)), (name, peaks)


@pytest.mark.ranks(2)
def test_memory_sees_an_offload_that_keeps_the_originals(ranks: Ranks) -> None:
    def kept(ctx: Context, *, hoards: bool, x: torch.Tensor, **given: Any) -> int:
        hoard: list[torch.Tensor] = []
        model = programs.network(ctx, given["weights"], dropout=True)
        live = programs.LiveBytes(ctx.device)
        if hoards:
            for block in model:
                block.register_forward_hook(lambda block, args, output: hoard.append(output))
        forward = programs.offload(ctx, model, moved=live.forget)
        leaf = x.to(ctx.device).requires_grad_()
        with live:
            output = forward(leaf)
            return (
                live.live()
                - output.nbytes
                - sum(mask.nbytes for block in programs.blocks(model) for mask in block.masks)
            )

    given = arguments(blocks=3, rows=4, width=2, hidden=5, dropout=True, seed=1)
    assert ranks.run(kept, hoards=False, **given) == [0, 0]
    assert ranks.run(kept, hoards=True, **given) == [2 * 4 * 2 * DTYPE.itemsize] * 2  # all outputs but the last


def recompute_with_other_random_numbers(ctx: Context, model: nn.Sequential) -> programs.Forward:
    return programs.recompute(ctx, model, preserve_rng_state=False)


def offload_that_rounds(ctx: Context, model: nn.Sequential) -> programs.Forward:
    return programs.under(lambda: saved_tensors_hooks(torch.Tensor.bfloat16, torch.Tensor.double), model)


def shard_that_gathers_nothing(ctx: Context, model: nn.Sequential) -> programs.Forward:
    pack, _ = programs.sharding(ctx, model)

    def unpack(saved: programs.Saved) -> torch.Tensor:
        if isinstance(saved, torch.Tensor):
            return saved
        mine, shape = saved
        return mine.repeat(ctx.world_size)[: shape.numel()].view(shape)

    return programs.under(lambda: saved_tensors_hooks(pack, unpack), model)


def shard_with_ranks_in_another_order(ctx: Context, model: nn.Sequential) -> programs.Forward:
    pack, whole = programs.sharding(ctx, model)

    def unpack(saved: programs.Saved) -> torch.Tensor:
        if isinstance(saved, torch.Tensor):
            return saved
        return whole(saved).reshape(-1).roll(saved[0].numel()).view(saved[1])

    return programs.under(lambda: saved_tensors_hooks(pack, unpack), model)


@pytest.mark.ranks(2)
@pytest.mark.parametrize(
    "broken",
    [
        recompute_with_other_random_numbers,
        offload_that_rounds,
        shard_that_gathers_nothing,
        shard_with_ranks_in_another_order,
    ],
    ids=lambda broken: broken.__name__.replace("_", " "),
)
def test_a_broken_technique_is_found(ranks: Ranks, broken: programs.Technique) -> None:
    # Above 256 bfloat16 no longer holds odd numbers.
    given = arguments(blocks=2, rows=2, width=8, hidden=8, dropout=True, seed=1)
    given["x"] = given["x"] + 1001

    def program(ctx: Context) -> Result:
        reseed(ctx, 1)
        return once(ctx, programs.train, technique=broken, **given)  # type: ignore[no-any-return]

    result, _ = ranks.run(program)
    with pytest.raises(AssertionError, match=r"^rank 0, (input|\d\.\w+) gradient: "):
        assert_same(result, given, "rank 0")


@pytest.mark.ranks(2)
def test_a_peer_that_sends_back_in_the_order_of_storing_is_found(ranks: Ranks) -> None:
    # All of one shape, so that the wrong one fits. Backward asks for the last first.
    given = arguments(blocks=2, rows=2, width=3, hidden=3, dropout=False, seed=1)

    def program(ctx: Context) -> Result:
        model = programs.network(ctx, given["weights"], dropout=False)
        leaves = programs.on_device(ctx, given["x"], given["grad"])
        plan = programs.peers_plan(ctx, model, *leaves)
        if plan is None:
            return programs.training_step(model, programs.lending_forward(ctx, model), *leaves)()
        return programs.storing(ctx, programs.Plan(plan.tensors, sorted(plan.fetches)))()

    result, _ = ranks.run(program)
    with pytest.raises(AssertionError, match=r"^rank 0, (input|\d\.\w+) gradient: "):
        assert_same(result, given, "rank 0")


@pytest.mark.ranks(2)
def test_your_own_technique(ranks: Ranks) -> None:
    """Yours in place of ours: a function of context and model that returns the forward to call."""

    def in_int8(ctx: Context, model: nn.Sequential) -> programs.Forward:
        return programs.under(
            lambda: saved_tensors_hooks(lambda tensor: tensor.char(), lambda tensor: tensor.double()), model
        )

    given = arguments(blocks=1, rows=3, width=3, hidden=4, dropout=True, seed=1)  # whole numbers below 128
    for rank, result in enumerate(ranks.run(once, programs.train, technique=in_int8, **given)):
        assert_same(result, given, f"rank {rank}")


@pytest.mark.ranks(3)
def test_a_rank_without_a_peer_is_refused(ranks: Ranks) -> None:
    given = arguments(blocks=1, rows=1, width=1, hidden=1, dropout=False, seed=1)
    with pytest.raises(ValueError, match="the world must be of even size, got 3"):
        ranks.run(once, programs.lend, **given)
