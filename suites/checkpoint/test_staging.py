"""An asynchronous save writes what was there at the call, though all of it changes in place right after."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pytest_gpuperf import Ranks
from suites.checkpoint.programs.staging import WAYS, State, overlapped, staged
from suites.shared.comparison import assert_same

pytestmark = pytest.mark.ranks(2)


@pytest.mark.parametrize("way", WAYS)
def test_what_changes_after_the_call(ranks: Ranks, tmp_path: Path, way: str) -> None:
    assert_staged(ranks.run(staged, way=way, folder=tmp_path, saves=2))


def test_saves_that_overlap(ranks: Ranks, tmp_path: Path) -> None:
    """Each has copies of its own, of the same tensors."""
    assert_staged(ranks.run(overlapped, folder=tmp_path))


def assert_staged(got: list[list[tuple[State, State]]]) -> None:
    for rank, of_rank in enumerate(got):
        for number, (saved, loaded) in enumerate(of_rank):
            where = f"rank {rank}, save {number}"
            assert sorted(loaded) == sorted(saved), where
            tensors = [name for name, value in saved.items() if isinstance(value, torch.Tensor)]
            assert_same([{name: loaded.pop(name) for name in tensors}], [{name: saved.pop(name) for name in tensors}])
            assert loaded == saved, f"{where} has {loaded}, not {saved}"
            assert loaded["objects"].twice is loaded["objects"].again, f"{where}: one list has become two"
