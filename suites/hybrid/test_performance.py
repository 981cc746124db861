"""Which mesh trains the fastest on these ranks, and what tensor and data parallelism lose over a slow link."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from pytest_gpuperf import Context, Metric, Perf, Ranks, Search
from suites.hybrid.programs import racing
from suites.shared.llama import Config, flop_of_step
from suites.shared.ways import NET, P2P, SHM, Way, connected, over

pytestmark = pytest.mark.perf

# Sizes of Llama 3.2 3B, with fewer layers and words: a step takes 2 H200 some 15 ms.
LARGE = Config(layers=2, heads=24, kv_heads=8, head_dim=128, hidden=8192, vocabulary=32000)
# Over sockets the 30 million parameters alone take tens of milliseconds.
SMALL = Config(layers=2, heads=8, kv_heads=8, head_dim=128, hidden=2816, vocabulary=2048)
SMOKE = Config(layers=2, heads=8, kv_heads=8, head_dim=2, hidden=16, vocabulary=16)
DTYPE = torch.bfloat16

Found = dict[tuple[int, str], Search]
"""Searches by number of ranks and way."""


@pytest.fixture(scope="session")
def found_over() -> Found:
    """What this run has found so far."""
    return {}


def learns(vocabulary: int) -> Callable[[Context, torch.Tensor, int], None]:
    """Whether training on the same tokens over and over has brought the loss below that of a guess."""

    def verify(ctx: Context, output: torch.Tensor, steps: int) -> None:
        loss, norm = output.tolist()
        assert math.isfinite(loss), f"the loss is {loss}"
        assert 0 < norm < math.inf, f"the norm of the gradients is {norm}"
        if steps > 10:
            assert loss < math.log(vocabulary), f"the loss is {loss} after {steps} steps"

    return verify


def search(perf: Perf, config: Config, length: int, configurations: dict[str, Any]) -> Search:
    """Trains the model on each mesh, two sequences a rank.

    Losses and norms may differ by two roundings of bfloat16: a sum over ranks is rounded where one device's is not.
    """
    sequences = 2 * perf.world_size
    return perf.configured(rtol=2.0**-7, atol=0.0).search(
        racing.train,
        configurations=configurations,
        name="meshes",
        tokens=sequences * length,
        flop=flop_of_step(config, sequences, length),
        dtype=DTYPE,
        verify=learns(config.vocabulary),
        # A handful of small numbers scatters more than a large model's.
        arithmetic=torch.float32 if perf.smoke else DTYPE,
        config=config,
        sequences=sequences,
        length=length,
        seed=1,
    )


@pytest.mark.ranks(2, 4, 8, largest=True)
def test_meshes(perf: Perf) -> None:
    """Every (pp, shard, cp, tp) that the ranks make: tokens per second and memory of each, the fastest named."""
    meshes = racing.meshes(perf.world_size)
    if perf.smoke:  # one of each three axes says that all of them work together
        most = max(map(len, meshes.values()))
        meshes = {name: mesh for name, mesh in meshes.items() if len(mesh) == most}
    configurations = {name: {"mesh": mesh} for name, mesh in meshes.items()}
    # A layer for each stage of the longest pipeline.
    config = SMOKE if perf.smoke else LARGE._replace(layers=perf.world_size)
    found = search(perf, config, perf.sized(1024, smoke=32), configurations)
    perf.check(**found.figures)


def judge(perf: Perf, ranks: Ranks, found_over: Found, way: Way) -> None:
    """Trains over a way that NCCL's log proves: whether tensor parallelism loses more than data parallelism does."""
    way.require(ranks.run(connected))
    configurations = {name: {"mesh": {name: perf.world_size}} for name in ("tp", "shard")}
    found = found_over[perf.world_size, way.name] = search(
        perf, SMOKE if perf.smoke else SMALL, perf.sized(1024, smoke=32), configurations
    )
    perf.check(**found.figures)
    links = found_over.get((perf.world_size, P2P.name))
    if links is None or way is P2P:
        return
    fast = {trial.name: trial.seconds for trial in links.ran}
    # Two tests' figures: ratios to look at, and none to judge.
    perf.show(
        **{
            f"{trial.name}_over_links": Metric(trial.seconds / seconds, "x", "lower")
            for trial in found.ran
            if trial.seconds is not None and (seconds := fast.get(trial.name)) is not None
        }
    )


@over(P2P)
def test_over_p2p(perf: Perf, ranks: Ranks, found_over: Found) -> None:
    judge(perf, ranks, found_over, P2P)


@over(SHM)
@pytest.mark.depends("host")
def test_over_shm(perf: Perf, ranks: Ranks, found_over: Found) -> None:
    judge(perf, ranks, found_over, SHM)


@over(NET)
@pytest.mark.depends("host")
def test_over_net(perf: Perf, ranks: Ranks, found_over: Found) -> None:
    judge(perf, ranks, found_over, NET)
