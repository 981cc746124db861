"""What a checkpoint, a file and a part of either hold is what was saved, in the same dictionaries and lists."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from pytest_gpuperf import Ranks
from suites.checkpoint.programs.converting import FILE, converted, named, whole_state

pytestmark = pytest.mark.ranks(2)


def assert_state(got: Any, expected: Any, where: str) -> None:
    """Checks that tensors and values are equal, each in its place."""
    if isinstance(expected, dict):
        assert isinstance(got, dict), f"{where} is {got}"
        assert sorted(got) == sorted(expected), f"{where} has {sorted(got)}, not {sorted(expected)}"
        for name, value in expected.items():
            assert_state(got[name], value, f"{where}, {name}")
    elif isinstance(expected, list | tuple):
        assert type(got) is type(expected), f"{where} is {got}"
        assert len(got) == len(expected), f"{where} has {len(got)} entries, not {len(expected)}"
        for number, value in enumerate(expected):
            assert_state(got[number], value, f"{where}, entry {number}")
    elif isinstance(expected, torch.Tensor):
        assert got.dtype == expected.dtype, f"{where} is of {got.dtype}"
        assert torch.equal(got.cpu(), expected), f"{where} is {got}, not {expected}"
    else:
        assert got == expected, f"{where} is {got}, not {expected}"


def test_a_checkpoint_becomes_a_file_and_back(ranks: Ranks, tmp_path: Path) -> None:
    expected = whole_state()
    for rank, (loaded, sent) in enumerate(ranks.run(converted, folder=tmp_path)):
        assert_state(loaded, expected, f"rank {rank}, of the checkpoint")
        assert_state(sent, expected["model"], f"rank {rank}, of the file")
    assert_state(torch.load(tmp_path / FILE, weights_only=True), expected, "the file")


@pytest.mark.parametrize(
    ("keys", "parts"),
    [
        (None, ["model", "optimizer", "step", "nested", "pair"]),
        ("step", ["step"]),
        ({"model", "step"}, ["model", "step"]),
        ({"nested", "pair"}, ["nested", "pair"]),
        ({"optimizer.groups", "model.scalar"}, ["optimizer", "model"]),
    ],
    ids=["all", "a value", "two parts", "lists and a tuple", "parts of parts"],
)
def test_what_is_named(ranks: Ranks, tmp_path: Path, keys: set[str] | str | None, parts: list[str]) -> None:
    expected = {part: whole_state()[part] for part in parts}
    if keys is not None and "model.scalar" in keys:
        expected = {
            "model": {"scalar": expected["model"]["scalar"]}, "optimizer": {"groups": expected["optimizer"]["groups"]}
        }  # fmt: skip
    for rank, got in enumerate(ranks.run(named, folder=tmp_path, keys=keys)):
        assert_state(got, expected, f"rank {rank}")
