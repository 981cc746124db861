"""Shards on hosts and on disks train as an optimizer in memory does, and leave no file behind.

SGD: whole numbers, exactly; Adam: within a bound. Both are derived in suites/shared/problems.py and
suites/shared/references.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf import Ranks
from suites.shared import problems
from suites.shared.comparison import Results, assert_close
from suites.shared.problems import Problem
from suites.shared.references import assert_trained, problem_atol, whole_batch
from suites.shared.strategies import seeds, worlds
from suites.zero_infinity.programs import offloading as programs
from suites.zero_infinity.programs.offloading import Account
from suites.zero_infinity.reference import whole_state

pytestmark = pytest.mark.ranks(2)

# Kept of each element: the value, and SGD's momentum or Adam's two moments.
NUMBERS = {"sgd": 2, "adam": 3}


@st.composite
def drawn_problems(draw: st.DrawFn, /, world_size: int) -> Problem:
    adam = draw(st.booleans())
    dtype = torch.float64 if adam else draw(st.sampled_from(list(problems.MAX_STEPS_IN)))
    features = st.integers(1, problems.MAX_FEATURES)
    return Problem(
        world_size=world_size,
        seed=draw(seeds),
        inputs=draw(features),
        hidden=0 if adam else draw(features),
        outputs=draw(features),
        rows=draw(st.integers(1, problems.MAX_ROWS)),
        steps=draw(st.integers(1, problems.MAX_STEPS_IN[dtype])),
        dtype=dtype,
        optimizer="adam" if adam else "sgd",
        wide=True,
    )


def slice_size(numel: int, degree: int) -> int:
    """Elements that each rank keeps of so many: no more than these, rounded up, else there would be nothing sharded."""
    return -(-numel // degree)


def sliced(value: torch.Tensor, rank: int, degree: int) -> torch.Tensor:
    """The rank's part of the elements, padded with zeros to the first one's size."""
    size = slice_size(value.numel(), degree)
    padded = torch.cat([value.flatten(), value.new_zeros(size * degree - value.numel())])
    return padded[rank * size : (rank + 1) * size]


def expected_slices(problem: Problem) -> Results:
    whole = whole_batch(problem)
    return [
        {
            name: sliced(value, rank, problem.world_size) if ".weight" in name or ".bias" in name else value
            for name, value in result.items()
        }
        for rank, result in enumerate(whole)
    ]


def assert_offloaded(accounts: list[Account], problem: Problem, *, disk: bool) -> None:
    """The trajectory is the one in memory; values and state are where they should be, and their bytes as computed."""
    expected = expected_slices(problem)
    assert_trained(problem, [account.results for account in accounts], expected)
    sizes = [slice_size(value.numel(), problem.world_size) for value in problem.parameters().values()]
    counts = 4 * len(sizes) if problem.optimizer == "adam" else 0  # of steps, a float32 for each parameter
    nbytes = sum(sizes) * problem.dtype.itemsize * NUMBERS[problem.optimizer] + counts
    state = whole_state(problem)
    for rank, account in enumerate(accounts):
        assert account.on_disk == (nbytes if disk else 0)
        files = account.files.unpacked()
        values = {name: expected[rank][f"step {problem.steps}, {name}"] for name in problem.parameters()}
        kept = {
            name: value if name.endswith(".step") else sliced(value, rank, problem.world_size)
            for name, value in state.items()
        }
        assert set(files) == ({*values, *kept} if disk else set()), f"rank {rank} has the files {sorted(files)}"
        for name, content in files.items():
            atol = problem_atol(problem, name) if name in values else 0.0
            assert_close(content, (values | kept)[name], f"rank {rank}, file {name}", atol=atol)
        assert account.in_memory == (0 if disk else nbytes)


@pytest.mark.ranks(2, 3)
@given(data=st.data(), disk=st.booleans())
def test_offloaded(ranks: Ranks, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, disk: bool) -> None:
    world = data.draw(worlds(ranks))
    problem = data.draw(drawn_problems(world.world_size))
    stop_after = data.draw(st.integers(0, problem.steps - 1)) if disk else 0
    folder = tmp_path_factory.mktemp("offloaded")
    accounts = world.run(
        programs.account, problem=problem, folder=folder if disk else None, stop_after=stop_after or None
    )
    assert_offloaded(accounts, problem, disk=disk)
    folder.rmdir()  # and fails unless the program left it empty


@pytest.mark.ranks(4)
@pytest.mark.parametrize(("optimizer", "nbytes"), [("sgd", 8 * 22), ("adam", 8 * 9 + 4)])
def test_offloaded_to_disk_by_four(ranks: Ranks, tmp_path: Path, optimizer: str, nbytes: int) -> None:
    """A slice has 3 of 9 weights or 1 of 3 biases; the last rank's slices have only padding.

    SGD keeps 2 numbers for each element of 3 and 2 slices, 2 (3 * 3 + 2 * 1); Adam 3 for one slice, and a count.
    """
    hidden = 3 if optimizer == "sgd" else 0
    problem = Problem(world_size=4, seed=1, inputs=3, hidden=hidden, outputs=3, steps=3, optimizer=optimizer)
    accounts = ranks.run(programs.account, problem=problem, folder=tmp_path)
    assert_offloaded(accounts, problem, disk=True)
    assert [account.on_disk for account in accounts] == [nbytes] * 4
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("stop_after", [None, 2], ids=["at once", "resumed"])
def test_adam_of_several_parameters(ranks: Ranks, tmp_path: Path, stop_after: int | None) -> None:
    """Adam takes one step, since later gradients of hidden layers depend on what it rounds; or several of one layer."""
    hidden, steps = (4, 1) if stop_after is None else (0, 3)
    problem = Problem(world_size=2, seed=3, hidden=hidden, steps=steps, optimizer="adam")
    accounts = ranks.run(programs.account, problem=problem, folder=tmp_path, stop_after=stop_after)
    assert_offloaded(accounts, problem, disk=True)


def test_rates_and_momentum_go_on_where_training_stopped(ranks: Ranks, tmp_path: Path) -> None:
    problem = Problem(world_size=2, seed=1, steps=3)
    accounts = ranks.run(programs.account, problem=problem, folder=tmp_path, stop_after=1)
    assert_offloaded(accounts, problem, disk=True)


def test_files_of_a_run_that_fails_are_removed(ranks: Ranks, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="fails with its files open"):
        ranks.run(programs.account, problem=Problem(world_size=2, seed=1), folder=tmp_path, raising=True)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_there_is_refused(ranks: Ranks, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"):
        ranks.run(programs.account, problem=Problem(world_size=2, seed=1), folder=tmp_path / "nowhere")


def test_your_own_optimizer(ranks: Ranks, tmp_path: Path) -> None:
    """In the place of torch's: yours over the shards' values, whose state is already where it should live."""

    class YourSgd(torch.optim.Optimizer):
        def step(self) -> None:  # type: ignore[override]  # without a closure
            for group in self.param_groups:
                for values in group["params"]:
                    buffer = self.state[values]["momentum_buffer"]
                    values.sub_(group["lr"] * buffer.add_(values.grad))

    problem = Problem(world_size=2, seed=1, steps=3)
    accounts = ranks.run(
        programs.account,
        problem=problem,
        folder=tmp_path,
        optimizer=lambda problem, parameters: YourSgd(parameters, {"lr": 1.0}),
    )
    assert_offloaded(accounts, problem, disk=True)
