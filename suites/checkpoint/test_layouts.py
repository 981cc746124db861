"""A layout that a world or a model does not fit is refused before any rank waits for another."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from torch.distributed.tensor import DTensor

from pytest_gpuperf import Context, Ranks
from suites.checkpoint.programs.layouts import Layout, split_model
from suites.checkpoint.programs.training import Setup, begun, continued
from suites.shared.llama import Config

CONFIG = Config(layers=1, heads=4, kv_heads=2, head_dim=2, hidden=6, vocabulary=8)
HEADS = "the model's heads=4 does not split over 3 ranks of tensor parallelism"


@pytest.mark.parametrize(
    ("layout", "config", "message"),
    [
        (Layout(), CONFIG, "the layout one rank needs 1 ranks, and the world has 3: change a degree"),
        (Layout(tensor=2), CONFIG, "the layout tensor 2 needs 2 ranks, and the world has 3: change a degree"),
        (Layout(shard=2, tensor=2), CONFIG, "the layout shard 2 x tensor 2 needs 4 ranks, and the world has 3"),
        (
            Layout(tensor=3),
            CONFIG,
            f"{HEADS}: load the checkpoint on a number of ranks that divides 4, or shard it with FSDP2",
        ),
        (Layout(tensor=3), CONFIG._replace(heads=6), "the model's kv_heads=2 does not split over 3 ranks"),
        (Layout(tensor=3), CONFIG._replace(heads=6, kv_heads=3, hidden=4), "the model's hidden=4 does not split"),
        (Layout(tensor=3), CONFIG._replace(heads=6, kv_heads=3), "the model's vocabulary=8 does not split over 3"),
    ],
    ids=["one rank", "world", "world of two axes", "heads", "heads of keys", "hidden", "vocabulary"],
)
def test_a_world_that_a_layout_does_not_fit(layout: Layout, config: Config, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        layout.require(config, 3)


@pytest.mark.ranks(3)
def test_ranks_that_a_checkpoint_does_not_split_over(ranks: Ranks, tmp_path: Path) -> None:
    saved = Setup(config=CONFIG, layout=Layout(shard=3), seed=1)
    ranks.run(begun, job=saved, folder=tmp_path, before=0, after=0)
    for layout, message in ((Layout(tensor=2), "needs 2 ranks, and the world has 3"), (Layout(tensor=3), HEADS)):
        with pytest.raises(ValueError, match=message):
            ranks.run(continued, job=dataclasses.replace(saved, layout=layout), folder=tmp_path, after=0)


def test_replicas_of_split_tensors() -> None:
    with pytest.raises(ValueError, match="has replicas of split tensors, which nothing here trains: shard them"):
        Layout(replicate=2, tensor=2).require(CONFIG, 4)


def held(ctx: Context, *, layout: Layout) -> tuple[int, int]:
    """Elements of all matrices, and how many of them are on the rank."""
    model = split_model(ctx, CONFIG._replace(hidden=8), layout, dtype=torch.float32, seed=1)
    matrices = [value for value in model.parameters() if value.dim() > 1]
    local = [value.to_local() if isinstance(value, DTensor) else value for value in matrices]
    return sum(value.numel() for value in matrices), sum(value.numel() for value in local)


@pytest.mark.ranks(4)
@pytest.mark.parametrize(
    "layout", [Layout(replicate=4), Layout(shard=4), Layout(replicate=2, shard=2), Layout(shard=2, tensor=2)], ids=str
)
def test_a_rank_holds_its_part_of_each_matrix(ranks: Ranks, layout: Layout) -> None:
    """A model that is not split at all would load and train in the same way."""
    for whole, part in ranks.run(held, layout=layout):
        assert part * layout.shard * layout.tensor == whole
