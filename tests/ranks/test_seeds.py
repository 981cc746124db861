"""Which generators a run finds seeded."""

import sys
from types import ModuleType
from typing import Any
from unittest import mock

import pytest
import torch

from pytest_gpuperf import Context
from pytest_gpuperf.ranks.rank import _Rank
from tests.ranks.conftest import Call


def draws(ctx: Context) -> list[float]:
    import random

    import numpy as np

    return [random.random(), float(np.random.rand()), float(torch.rand(1))]


def test_every_global_generator_is_seeded_before_each_run(call: Call) -> None:
    pytest.importorskip("numpy")
    first, second = call(draws), call(draws)
    assert first == second
    assert all(one != other for one, other in zip(*first, strict=True))  # the ranks differ


def test_numpy_is_not_loaded_for_a_program_that_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "numpy"]:
        monkeypatch.delitem(sys.modules, name)
    rank: Any = mock.Mock(_device=torch.device("cpu"))
    with torch.random.fork_rng():
        _Rank._seed(rank, 7)
    assert "numpy" not in sys.modules


@pytest.mark.parametrize(("seed", "given"), [(7, 7), ((1 << 32) + 5, 5)])
def test_numpy_gets_a_seed_that_it_takes(monkeypatch: pytest.MonkeyPatch, seed: int, given: int) -> None:
    numpy_random = ModuleType("numpy.random")
    numpy_random.seed = mock.Mock()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "numpy.random", numpy_random)
    rank: Any = mock.Mock(_device=torch.device("cpu"))
    with torch.random.fork_rng():
        _Rank._seed(rank, seed)
    numpy_random.seed.assert_called_once_with(given)
