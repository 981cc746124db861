"""However a state is saved and loaded, each rank gets it back bit by bit, and the files are where they should be."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp

from pytest_gpuperf import Ranks
from suites.checkpoint.programs.layouts import Layout
from suites.checkpoint.programs.saving import (
    OF_META,
    WAYS,
    again,
    by_itself,
    in_part,
    in_place,
    into_meta,
    saved_and_loaded,
    with_changing_plans,
)
from suites.checkpoint.programs.training import Setup, State
from suites.shared.comparison import assert_same
from suites.shared.inputs import integers
from suites.shared.llama import Config

SMALL = Config(layers=1, heads=2, kv_heads=2, head_dim=2, hidden=5, vocabulary=7)

pytestmark = pytest.mark.ranks(2)


@pytest.mark.parametrize("way", WAYS)
def test_saved_and_loaded(ranks: Ranks, tmp_path: Path, way: str) -> None:
    layout = Layout(replicate=2) if WAYS[way].replicas else Layout(shard=2)
    got = ranks.run(saved_and_loaded, job=Setup(config=SMALL, layout=layout, seed=1), folder=tmp_path, way=way)
    assert_same([loaded.unpacked() for _, loaded in got], [saved.unpacked() for saved, _ in got])
    if way == "alone":
        assert sorted(path.parent.name for path in tmp_path.rglob(".metadata")) == ["0", "1"]
        return
    # A rank that has nothing to write leaves an empty file.
    pieces = dcp.FileSystemReader(tmp_path).read_metadata().storage_data
    files = {piece.relative_path for piece in pieces.values()}
    of_ranks = {file.split("_")[2] for file in files}
    assert of_ranks == ({"0"} if way == "the lowest rank" else {"0", "1"}), f"{way} wrote {sorted(files)}"
    if way == "files of about one size":
        assert len(files) == 6, f"three threads of each of two ranks wrote {sorted(files)}"
    if way == "threads":
        assert len(files) == len(pieces), f"{len(pieces)} pieces are in {len(files)} files, not in one each"


def test_a_checkpoint_that_lacks_a_tensor(ranks: Ranks, tmp_path: Path) -> None:
    got = ranks.run(in_part, folder=tmp_path / "allowed", allow=True)
    values = [of_rank.pop("value") for of_rank in got]
    assert values == [{"rate": [0.5, 3]}] * 2
    assert_same(got, [{"kept": torch.full((2,), 5.0), "new": torch.full((3,), 7.0)}] * 2)
    with pytest.raises(Exception, match="Missing key in checkpoint state_dict: new"):
        ranks.run(in_part, folder=tmp_path / "refused", allow=False)


def test_a_checkpoint_that_must_stay(ranks: Ranks, tmp_path: Path) -> None:
    with pytest.raises(Exception, match=r"Checkpoint already exists and self\.overwrite=False"):
        ranks.run(again, folder=tmp_path)
    assert dcp.FileSystemReader(tmp_path).read_metadata().state_dict_metadata


@pytest.mark.parametrize("address", [False, True], ids=["a folder", "an address"])
def test_a_checkpoint_in_another_one_s_place(ranks: Ranks, tmp_path: Path, address: bool) -> None:
    """Nothing of the first is left, of which there was more: neither numbers nor names."""
    states: list[State] = [
        {"a": integers((6, 3), torch.float32, seed=1), "gone": integers((2, 9), torch.float32, seed=2)},
        {"a": integers((4, 5), torch.bfloat16, seed=3)},
    ]
    folder = tmp_path.as_uri() if address else str(tmp_path)
    for rank, (loaded, found) in enumerate(ranks.run(in_place, states=states, folder=folder)):
        values = {name: found.pop(name, None) for name in list(found) if name.startswith("own")}
        assert values == {"own 1 0": [1], "own 1 1": [1]}, f"rank {rank} finds {values}"
        assert_same([loaded, found], [states[1]] * 2)


def test_plans_that_change(ranks: Ranks, tmp_path: Path) -> None:
    """The second of eight saves has the plan of the first, the fourth that of the third, and the others their own.

    At the fifth only one rank has another plan, and the others' are those of before.
    """
    for rank, found in enumerate(ranks.run(with_changing_plans, folder=tmp_path, saves=8)):
        for save, (saved, loaded) in enumerate(found):
            value = "number" if save < 6 else "replica"
            assert loaded.pop(value) == saved.pop(value), f"rank {rank}, save {save}"
            assert_same([loaded], [saved])


@pytest.mark.parametrize("together", [True, False], ids=["into one folder", "into a folder each"])
def test_ranks_that_save_by_themselves(ranks: Ranks, tmp_path: Path, together: bool) -> None:
    for rank, (saved, loaded) in enumerate(ranks.run(by_itself, folder=tmp_path, together=together)):
        assert loaded.pop("nested") == saved.pop("nested"), f"rank {rank}"
        assert_same([loaded], [saved])


def test_tensors_without_storage(ranks: Ranks, tmp_path: Path) -> None:
    """They get storage and what was saved, shards by where they are in the whole."""
    whole = {name: integers(shape, dtype, seed=number) for number, (name, shape, dtype) in enumerate(OF_META)}
    expected = {f"{kind} {name}": value for kind in ("cut", "whole") for name, value in whole.items()}
    got = ranks.run(into_meta, folder=tmp_path)
    assert_same(got, [expected | {"parameter": whole["rows"]}] * 2)
