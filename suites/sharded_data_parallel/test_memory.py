"""Only the layer that runs is gathered, beside those that are gathered with it; what is offloaded is on the CPU."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.distributed.fsdp import CPUOffloadPolicy, OffloadPolicy, fully_shard

from pytest_gpuperf import Context, Ranks
from suites.sharded_data_parallel.programs import stages as programs
from suites.sharded_data_parallel.programs.mixed_precision import FULL, REDUCED_IN_FULL, Precision
from suites.sharded_data_parallel.reference import assert_fully_sharded, assert_gathered
from suites.shared.problems import Network, Problem

# ``by_layer`` gathers the root, which has these two layers, before any layer runs, and the first layer when its turn
# comes: after the shortcut, before the second. If nothing is resharded after forward, the first then stays.
ROOT = {"shortcut", "second"}
WHOLE = ROOT | {"first"}


@pytest.mark.ranks(2, 4)
@pytest.mark.parametrize("reshard", [True, False], ids=["resharded", "gathered once"])
@pytest.mark.parametrize("precision", [FULL[0], REDUCED_IN_FULL[0]], ids=["full", "mixed"])
def test_a_layer_is_gathered_when_it_runs(ranks: Ranks, precision: Precision, reshard: bool) -> None:
    """3 rows, which R does not divide; two microbatches and steps, so that backward has to shard all again.

    Where 2 ranks compute in half the bytes, all of a layer takes what a shard does: of mixed precision 4 ranks tell.
    """
    problem = layers_of_three_rows(ranks.world_size, precision)
    accounts = ranks.run(
        programs.account,
        programs.fully_sharded,
        problem=problem,
        precision=precision.policy,
        reshard_after_forward=reshard,
        count=False,
    )
    assert_gathered(accounts, problem, gathered_by_layer(reshard), precision)


def layers_of_three_rows(world_size: int, precision: Precision = FULL[0]) -> Problem:
    return Problem(world_size=world_size, seed=1, hidden=3, outputs=3, microbatches=2, dtype=precision.dtype)


def gathered_by_layer(reshard: bool) -> dict[str, set[str]]:
    return {"shortcut": ROOT, "first": WHOLE, "second": ROOT if reshard else WHOLE}


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("reshard", [True, False], ids=["resharded", "gathered once"])
def test_nothing_of_what_was_gathered_stays(ranks: Ranks, reshard: bool) -> None:
    width = 96  # so that nothing else that a step makes is as large as its shard
    whole = width * width * 4

    def beside_leftovers(ctx: Context) -> tuple[int, int]:
        left = torch.ones(100 * width * width, device=ctx.device)  # as an earlier test's, on a warm rank
        found = programs.largest_left(ctx, width=width, reshard_after_forward=reshard)
        del left  # only now
        return found

    for forward, step in ranks.run(beside_leftovers):
        assert forward == (whole // ranks.world_size if reshard else whole)
        assert step == whole // ranks.world_size


@pytest.mark.ranks(2)
def test_your_own_sharding_gathers_what_you_say(ranks: Ranks) -> None:
    def your_shard_module(module: Network, **options: Any) -> None:
        for layer in module.children():
            fully_shard(layer, **options)
        fully_shard(module, **options)

    problem = layers_of_three_rows(ranks.world_size)
    accounts = ranks.run(programs.account, programs.fully_sharded, problem=problem, shard_module=your_shard_module)
    assert_gathered(accounts, problem, {name: {name} for name in WHOLE})


@pytest.mark.ranks(2)
@pytest.mark.parametrize("offload", [True, False], ids=["offloaded", "on the device"])
def test_where_parameters_wait(ranks: Ranks, offload: bool) -> None:
    """On GPUs the devices tell; without, all are the same CPU, and what ``fully_shard`` is asked for tells."""

    def noting(module: Network, *, offload_policy: OffloadPolicy, **options: Any) -> None:
        asked = isinstance(offload_policy, CPUOffloadPolicy)
        assert asked == offload, f"fully_shard is asked for {offload_policy}, with offload={offload}"
        programs.by_layer(module, offload_policy=offload_policy, **options)

    problem = Problem(world_size=ranks.world_size, seed=1)
    accounts = ranks.run(
        programs.account, programs.fully_sharded, problem=problem, shard_module=noting, offload=offload
    )
    assert_fully_sharded(accounts, problem, reshard=True, offload=offload)


@pytest.mark.ranks(2)
def test_what_is_not_on_the_cpu_is_no_offload(ranks: Ranks) -> None:
    """What was offloaded is said to be on a GPU, each part by itself: without GPUs nothing can be there."""
    problem = Problem(world_size=ranks.world_size, seed=1)
    accounts = ranks.run(programs.account, programs.fully_sharded, problem=problem, offload=True)
    for name in ("parameters", "gradients", "optimizer"):
        on_gpus = [
            replace(account, memory=account.memory | {name: replace(account.memory[name], devices=frozenset({"cuda"}))})
            for account in accounts
        ]
        with pytest.raises(AssertionError, match=f"^rank 0, {name}: on {{'cuda'}}, not cpu"):
            assert_fully_sharded(on_gpus, problem, reshard=True, offload=True)
