"""However activations get to backward, output, gradients and new parameters are the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from pytest_gpuperf import Context, Ranks
from suites.activations.programs import techniques as programs
from suites.activations.programs.lending import lend, lends
from suites.activations.reference import WIDER, Arguments, arguments, assert_blocks, at_step, own
from suites.shared.comparison import assert_close
from suites.shared.step import Tensors, once
from suites.shared.strategies import seeds, worlds


def reseed(ctx: Context, seed: int) -> None:
    """Every technique draws the same masks; sharding needs them on all ranks."""
    torch.default_generator.manual_seed(seed)
    if ctx.device.type == "cuda":
        torch.cuda.manual_seed(seed)


def every_technique(ctx: Context, *, each: list[Arguments], seed: int, steps: int) -> list[dict[str, Tensors]]:
    """Steps of all techniques, each on the rank's own input but for ``shard``, whose ranks work on the first's."""
    prepared = {
        name: programs.train(ctx, technique=technique, **each[0 if name == "shard" else ctx.rank])
        for name, technique in programs.TECHNIQUES.items()
    }
    if ctx.world_size % 2 == 0:
        prepared["lend"] = lend(ctx, **each[ctx.rank])
    results: list[dict[str, Tensors]] = []
    for _ in range(steps):
        results.append({})
        for name, step in prepared.items():
            reseed(ctx, seed)
            results[-1][name] = step()
    return results


def kept_and_others(ctx: Context, **kwargs: Any) -> tuple[Tensors, Tensors, torch.Tensor]:
    """What keeping gives; what others give unlike it, as ``technique, name``; and all of sharding's as one vector.

    Everything is equal if it is right. To hand over all tensors of all would take longer than the rest of the test.
    """
    (results,) = every_technique(ctx, steps=1, **kwargs)
    kept, sharded = results.pop("keep"), results.pop("shard")
    if not lends(ctx):
        results.pop("lend", None)
    unlike = {
        f"{technique}, {name}": result[name]
        for technique, result in results.items()
        for name in kept
        if not torch.equal(result[name], kept[name])
    }
    return kept, unlike, flat(sharded)


def flat(result: Tensors) -> torch.Tensor:
    return torch.cat([tensor.reshape(-1) for _, tensor in sorted(result.items())])


def inputs_of(world: Ranks, *, rows: int, width: int, seed: int, **sizes: Any) -> list[Arguments]:
    common = arguments(rows=rows, width=width, seed=seed, **sizes)
    bits = WIDER[sizes["blocks"]]
    return [common | own(rank, rows, width, seed, bits=bits) for rank in range(world.world_size)]


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
        assert_blocks(kept, each[rank], f"rank {rank}, keep")
        for where, tensor in unlike.items():
            assert_close(tensor, kept[where.partition(", ")[2]], f"rank {rank}, {where}")
        if rank == 0:
            first = kept  # whose input the ranks that shard work on
        assert_close(sharded, flat(first), f"rank {rank}, shard")


@pytest.mark.ranks(2)
def test_later_steps_have_inputs_of_their_own(ranks: Ranks) -> None:
    each = inputs_of(ranks, blocks=2, rows=3, width=2, hidden=4, dropout=True, seed=1)
    for rank, steps in enumerate(ranks.run(every_technique, each=each, seed=1, steps=3)):
        for number, results in enumerate(steps):
            assert {"lend", *programs.TECHNIQUES} == set(results)
            for name, result in results.items():
                if name == "lend" and rank % 2:
                    continue  # it stores, and trains nothing
                given = at_step(each[0 if name == "shard" else rank], number)
                assert_blocks(result, given, f"rank {rank}, step {number}, {name}")


@pytest.mark.ranks(2)
def test_what_is_drawn_after_a_step_has_not_been_drawn_before(ranks: Ranks) -> None:
    """Backward that draws the forward's masks again leaves the generator where forward has left it."""
    given = arguments(blocks=2, rows=3, width=2, hidden=4, dropout=True, seed=1)

    def program(ctx: Context) -> dict[str, torch.Tensor]:
        drawn = {}
        for name, technique in programs.TECHNIQUES.items():
            reseed(ctx, 1)
            programs.train(ctx, technique=technique, **given)()
            drawn[name] = torch.rand(4, device=ctx.device)
        return drawn

    for rank, drawn in enumerate(ranks.run(program)):
        for name, tensor in drawn.items():
            assert_close(tensor, drawn["keep"], f"rank {rank}, {name}")


@pytest.mark.ranks(2)
def test_your_own_technique(ranks: Ranks) -> None:
    """Yours in place of ours: a function of context and model that returns the forward to call."""

    def in_int8(ctx: Context, model: nn.Sequential) -> programs.Forward:
        return programs.under(
            lambda: saved_tensors_hooks(lambda tensor: tensor.char(), lambda tensor: tensor.double()), model
        )

    given = arguments(blocks=1, rows=3, width=3, hidden=4, dropout=True, seed=1)
    given["x"] = given["x"].remainder(3)  # whole numbers below 128 come of it
    for rank, result in enumerate(ranks.run(once, programs.train, technique=in_int8, **given)):
        assert_blocks(result, given, f"rank {rank}")
