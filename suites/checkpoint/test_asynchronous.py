"""An asynchronous save lets training go on, and saves the step at which it was called."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.utils._pytree import tree_map_only

from pytest_gpuperf import Ranks
from suites.checkpoint.programs.asynchronous import Begin, asynchronous_save, saved_by_one_stager, train_meanwhile
from suites.checkpoint.programs.layouts import Layout
from suites.checkpoint.programs.training import Setup, State, continued
from suites.shared.comparison import assert_same
from suites.shared.llama import Config

BEFORE, AFTER = 1, 2


def assert_asynchronous(ranks: Ranks, folder: Path, layout: Layout, begin: Begin = asynchronous_save) -> None:
    """What loads is what training had at the call, though every weight has changed since; and training was right."""
    config = Config(layers=1, heads=4, kv_heads=4, head_dim=2, hidden=4, vocabulary=8)
    job = Setup(config=config, layout=layout, seed=1)
    went_on = ranks.run(train_meanwhile, job=job, folder=folder, before=BEFORE, after=AFTER, begin=begin)
    assert all(rank.unfinished for rank in went_on)
    then = went_on[0].at_save.unpacked()
    for name, value in went_on[0].end.unpacked().items():
        assert not torch.equal(value, then[name]), f"{name} did not change after the call"
    got = ranks.run(continued, job=job, folder=folder, after=AFTER)
    assert_same([run.checkpoint.unpacked() for run in got], [then] * ranks.world_size)
    assert [run.losses for run in got] == [rank.losses for rank in went_on]
    assert_same([run.end.unpacked() for run in got], [rank.end.unpacked() for rank in went_on])


@pytest.mark.ranks(2)
@pytest.mark.parametrize("layout", [Layout(replicate=2), Layout(shard=2), Layout(tensor=2)], ids=str)
def test_asynchronous_save(ranks: Ranks, tmp_path: Path, layout: Layout) -> None:
    assert_asynchronous(ranks, tmp_path, layout)


@pytest.mark.skipif(
    torch.__version__ < "2.13",  # compared as a version
    reason=f"torch {torch.__version__} closes a stager after its first save: 2.13 is needed",
)
@pytest.mark.ranks(2)
def test_one_host_copy_for_several_saves(ranks: Ranks, tmp_path: Path) -> None:
    """Each save has the values of its own step."""
    config = Config(layers=1, heads=4, kv_heads=4, head_dim=2, hidden=4, vocabulary=8)
    job = Setup(config=config, layout=Layout(shard=2), seed=1)
    folders = [tmp_path / "first", tmp_path / "second"]
    saved = ranks.run(saved_by_one_stager, job=job, folders=folders)
    for number, folder in enumerate(folders):
        got = ranks.run(continued, job=job, folder=folder, after=0)
        assert_same([run.checkpoint.unpacked() for run in got], [of_rank[number].unpacked() for of_rank in saved])


def cloned_and_saved(state: State, writer: dcp.FileSystemWriter, group: dist.ProcessGroup) -> Future[Any]:
    """Somebody's own asynchronous save: clones on the device, and a thread that saves them."""
    clones = tree_map_only(torch.Tensor, torch.Tensor.clone, state)
    # A thread begins with device 0, and would wait for the copies of that one.
    on_device = torch.cuda.device(torch.cuda.current_device()) if torch.cuda.is_available() else nullcontext()

    def saved() -> Any:
        with on_device:
            return dcp.save(clones, storage_writer=writer, process_group=group)

    executor = ThreadPoolExecutor(1)
    saving = executor.submit(saved)
    executor.shutdown(wait=False)
    return saving


@pytest.mark.ranks(2)
def test_your_own_asynchronous_save(ranks: Ranks, tmp_path: Path) -> None:
    assert_asynchronous(ranks, tmp_path, Layout(shard=2), cloned_and_saved)
