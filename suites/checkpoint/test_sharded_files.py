"""Safetensors that ranks write hold every element once, in its place, whoever joins them and however they are read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from pytest_gpuperf import Ranks
from suites.checkpoint.programs import sharded_files as programs
from suites.checkpoint.programs.hugging_face import INDEX, SHARDS
from suites.shared.comparison import assert_same
from suites.shared.inputs import integers
from suites.shared.step import Tensors

safetensors = pytest.importorskip("safetensors", reason="safetensors is not installed: pip install safetensors")

SHAPES = {"a": (7, 3), "b": (2, 5, 3), "c": (5,), "d": (4, 9), "e": (1, 2), "f": (2, 4, 3, 2)}
TENSORS = {
    name: integers(shape, torch.bfloat16 if name == "d" else torch.float32, seed=number)
    for number, (name, shape) in enumerate(SHAPES.items())
}
THERE = {"a": 0, "b": 1, "c": 0, "d": 1, "e": 0, "f": 1}
"""Along which dimension each is cut by a writer; of ``e`` one rank has all."""
BACK = {"a": 1, "b": 2, "d": 0, "e": 1, "f": 3}
"""Along which dimension each is cut by a reader; ``c`` is read whole."""
FILES = {"a": 1, "b": 3, "c": 2, "d": 3, "e": 1, "f": 2}

pytestmark = pytest.mark.ranks(3)


def assert_files(folder: Path, files: dict[str, int]) -> None:
    """The library finds every tensor in the file that it should be in, and the index says so."""
    from safetensors.torch import load_file

    last = max(files.values())
    expected: dict[str, Tensors] = {}
    for name, number in files.items():
        expected.setdefault(f"model-{number:05}-of-{last:05}.safetensors", {})[name] = TENSORS[name]
    found = {path.name: load_file(path) for path in folder.glob("*.safetensors")}
    assert sorted(found) == sorted(expected)
    assert_same([found[file] for file in sorted(found)], [expected[file] for file in sorted(found)], ordered=False)
    index = json.loads((folder / INDEX).read_text(encoding="utf-8"))
    assert index["weight_map"] == {name: file for file, tensors in expected.items() for name in tensors}
    assert index["metadata"]["total_size"] == sum(value.nbytes for value in TENSORS.values())


def assert_read_and_joined(ranks: Ranks, folder: Path, joiners: tuple[int, ...] | None = None) -> None:
    got = ranks.run(
        programs.read_and_joined, tensors=TENSORS, there=THERE, back=BACK, files=FILES, folder=folder, joiners=joiners
    )
    assert_same(got, [TENSORS] * 3)
    assert_files(folder / "whole", FILES)


def test_shards_that_are_read_and_joined_by_all_ranks(ranks: Ranks, tmp_path: Path) -> None:
    assert_read_and_joined(ranks, tmp_path)


def test_shards_that_two_ranks_join(ranks: Ranks, tmp_path: Path) -> None:
    """The second one of them is the last of all ranks."""
    assert_read_and_joined(ranks, tmp_path, joiners=(0, 2))


@pytest.mark.parametrize("files", [FILES, None], ids=["several files", "one file"])
def test_shards_that_rank_0_joins(ranks: Ranks, tmp_path: Path, files: dict[str, int] | None) -> None:
    ranks.run(programs.joined, tensors=TENSORS, there=THERE, files=files, folder=tmp_path)
    assert len(list((tmp_path / SHARDS).iterdir())) == 3 * len({*(files or {"": 1}).values()}), "files of shards"
    assert_files(tmp_path, files or dict.fromkeys(TENSORS, 1))


@pytest.mark.parametrize("files", [FILES, None], ids=["several files", "one file"])
def test_files_that_one_rank_writes(ranks: Ranks, tmp_path: Path, files: dict[str, int] | None) -> None:
    got = ranks.run(programs.whole, tensors=TENSORS, back=BACK, files=files, folder=tmp_path)
    assert_same(got, [TENSORS] * 3)
    assert_files(tmp_path, files or dict.fromkeys(TENSORS, 1))
