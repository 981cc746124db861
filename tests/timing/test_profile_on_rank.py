"""Profiled steps on real ranks, joined into one file."""

from pathlib import Path

import torch
import torch.distributed as dist

from pytest_gpuperf import Context, Resettable
from pytest_gpuperf.features.profiling.on_rank import STEPS, profile_steps
from pytest_gpuperf.timing.sampling import Sampling
from pytest_gpuperf.traces.merging import write
from pytest_gpuperf.traces.rank_trace import RankTrace
from tests.ranks.conftest import Call
from tests.traces.opened import Opened


def in_groups(ctx: Context) -> Resettable:
    """An all_reduce of the world while a matmul runs, then one in the group of this rank alone."""
    x, a = torch.ones(1 << 12), torch.ones(128, 128)
    alone, _ = dist.new_subgroups(1)

    def step() -> torch.Tensor:
        assert x[0] == 1, "the reset did not run"
        work = dist.all_reduce(x, async_op=True)
        product = a @ a
        assert work is not None
        work.wait()
        dist.all_reduce(x, group=alone)
        return product

    return Resettable(step, lambda: x.fill_(1))


def test_the_ranks_of_gloo_are_tied_by_their_groups(call: Call, tmp_path: Path) -> None:
    traces: list[RankTrace] = call(profile_steps, in_groups, {}, Sampling(smoke=True), "a test")
    path = tmp_path / "all.json.gz"
    merged = write(path, traces, {})
    opened = Opened(path)
    assert opened.processes == {1: "rank 0 (cpu)", 2: "rank 1 (cpu)"}
    names = [one["name"] for one in opened.slices if one["pid"] == 1]
    assert [f"gpuperf step {number} of {STEPS}" in names for number in range(1, STEPS + 1)] == [True] * STEPS
    assert names.count("gloo:all_reduce") == 2 * STEPS
    # A barrier of the clock before each step, and of the step the all_reduce of the world; the other has one rank.
    collectives = opened.collectives()
    assert [{one["pid"] for one in parts} for parts in collectives] == [{1, 2}] * (2 * STEPS)
    assert {one["name"] for parts in collectives for one in parts} == {"gloo:barrier", "gloo:all_reduce"}
    for rank in merged.ranks:
        assert 0 < rank.compute < rank.step
        assert 0 <= rank.exposed <= rank.communication
        assert rank.communication > 0
    assert {(lane.rank, lane.kind) for lane in merged.lanes} == {
        (rank, kind) for rank in (0, 1) for kind in ("compute", "communication")
    }


def sized(ctx: Context, sizes: tuple[int, ...]) -> object:
    """A sweep's program whose step of a size makes as many tensors."""
    assert sizes == (4, 8)
    return lambda nbytes: lambda: [torch.zeros(1) for _ in range(nbytes)]


def test_one_size_of_a_sweep_is_profiled(call: Call, tmp_path: Path) -> None:
    path = tmp_path / "all.json.gz"
    write(path, call(profile_steps, sized, {}, Sampling(smoke=True), "a test", (4, 8), 8), {})
    zeros = [one for one in Opened(path).slices if one["name"] == "aten::zeros"]
    assert len(zeros) == 2 * STEPS * 8
