"""A machine comes and goes in mid-training: an epoch has each sample once, and losses are those of one process."""

from __future__ import annotations

import math
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch.distributed as dist

from pytest_gpuperf import Context, Ranks
from suites.elastic.programs import MODULE, Epochs, train
from suites.elastic.reference import Moments, come_and_gone, losses_in_one_process, worlds
from suites.shared.comparison import assert_losses
from suites.shared.course import ROUNDING
from suites.shared.job_log import Entry, attempts_of, read_log, surviving, surviving_losses
from suites.shared.noted_calls import noted_groups
from suites.shared.torchrun import visible_gpus

pytestmark = pytest.mark.ranks(2, nodes=1)

EPOCHS = Epochs(seed=1)
YOURS_STEPS = 8
YOURS = f"""
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from suites.shared.job_log import JobLog
from suites.shared.opened_groups import opened_groups

folder = Path(sys.argv[1])
checkpoint = folder / "mine.pt"
with opened_groups(patience=5) as (device, group):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    x, first = torch.ones(3, dtype=torch.float64, device=device), 0
    if checkpoint.exists():
        x, first = torch.load(checkpoint, map_location=device)
    log = JobLog(folder, first)
    for step in range(first, {YOURS_STEPS}):
        log.at("step", step)  # here the world changes
        samples = range(6 * step, 6 * step + 6)[rank::world_size]
        gradient = sum((x.sin() * sample for sample in samples), torch.zeros_like(x))
        dist.all_reduce(gradient, group=group)
        x = x - 1e-3 * gradient
        log.stepped(step, x.sum(), samples)
        if rank == 0:
            torch.save((x, step + 1), folder / "partial")
            (folder / "partial").rename(checkpoint)
"""


@pytest.fixture(scope="module")
def logs(ranks: Ranks, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Entry]]:
    """The logs of two jobs that run side by side, as both wait most of the time: the suite's own and yours."""
    folder = tmp_path_factory.mktemp("elastic")
    yours = folder / "yours.py"
    yours.write_text(YOURS, encoding="utf-8")
    scripts = {"the suite's": ("-m", MODULE), "yours": (str(yours),)}
    moments = {"the suite's": Moments.drawn(EPOCHS.steps, EPOCHS.seed), "yours": Moments(grow=2, shrink=5)}
    gpus = visible(ranks)

    def log_of(name: str) -> list[Entry]:
        own = folder / name.partition("'")[0].replace(" ", "-")
        own.mkdir()
        EPOCHS.store(own)
        return come_and_gone([*scripts[name], str(own)], own, moments[name], gpus)

    with ThreadPoolExecutor() as pool:
        return dict(zip(scripts, pool.map(log_of, scripts), strict=True))


def visible(ranks: Ranks) -> list[str]:
    """A GPU for each machine; none on CPUs."""
    return [gpu for gpu in ranks.run(visible_gpus)[0].split(",") if gpu]


def assert_seen_once(log: list[Entry], epochs: Epochs) -> None:
    for epoch in range(epochs.epochs):
        steps = range(epoch * epochs.per_epoch, (epoch + 1) * epochs.per_epoch)
        seen = Counter(sample for step in steps for entry in surviving(log)[step] for sample in entry.samples)
        assert seen == Counter(range(epochs.samples)), f"epoch {epoch}: {seen}"
    batches = [{sample for entry in done for sample in entry.samples} for done in surviving(log).values()]
    assert batches[: epochs.per_epoch] != batches[epochs.per_epoch :][: epochs.per_epoch], "epochs of the same order"


def assert_trained_alike(log: list[Entry], epochs: Epochs) -> None:
    assert worlds(log) == [1, 2, 1]
    assert_seen_once(log, epochs)
    expected = losses_in_one_process(epochs)
    found = [float.fromhex(loss) for _, loss in surviving_losses(log)]
    # In float64; ranks add the same numbers in another order.
    assert_losses(found, expected, rtol=ROUNDING)


def trained_until(ctx: Context, folder: Path, epochs: Epochs, stop: int) -> None:
    assert ctx.group is not None
    train(folder, epochs, ctx.device, ctx.group, stop)


def test_training_goes_on_in_another_world(ranks: Ranks, tmp_path: Path) -> None:
    """Without torchrun: training stops at some steps, and goes on with another number of ranks."""
    for world_size, stop in ((1, 3), (2, 9), (1, EPOCHS.steps)):
        ranks.resized(world_size).run(trained_until, tmp_path, EPOCHS, stop)
    log = read_log(tmp_path)
    assert [attempt[0].step for attempt in attempts_of(log)] == [0, 2, 8], "each begins behind the last checkpoint"
    assert_trained_alike(log, EPOCHS)


def groups_of_steps(ctx: Context, folder: Path, steps: int) -> list[bool]:
    """Whether each step's sum was one of the group that training was given."""
    group = dist.new_group()
    assert group is not None
    with noted_groups("all_reduce") as called:
        train(folder, EPOCHS, ctx.device, group, steps)
    return [used is group for used in called]


def test_steps_have_the_group_that_gives_up_soon(ranks: Ranks, tmp_path: Path) -> None:
    """The default group would give the same sums, and let a rank wait for minutes for a machine that is lost."""
    assert ranks.run(groups_of_steps, tmp_path, 3) == [[True] * 3] * 2


@pytest.mark.long
def test_a_machine_comes_and_goes(
    logs: dict[str, list[Entry]], ranks: Ranks, tmp_path: Path, soak_seconds: float
) -> None:
    """With --soak SECONDS, job after job at other moments."""
    assert_trained_alike(logs["the suite's"], EPOCHS)
    begun, seed = time.monotonic(), EPOCHS.seed
    while time.monotonic() < begun + soak_seconds:
        seed += 1
        folder, epochs = tmp_path / str(seed), Epochs(seed=seed)
        folder.mkdir()
        epochs.store(folder)
        moments = Moments.drawn(epochs.steps, seed)
        assert_trained_alike(come_and_gone(["-m", MODULE, str(folder)], folder, moments, visible(ranks)), epochs)


@pytest.mark.long
def test_your_own_script(logs: dict[str, list[Entry]]) -> None:
    """Yours needs the lines with ``log``. Its x is (1, 1, 1) at first, and has three equal elements ever after."""
    x, expected = 1.0, []
    for step in range(YOURS_STEPS):
        x -= 1e-3 * math.sin(x) * sum(range(6 * step, 6 * step + 6))
        expected.append(3 * x)
    log = logs["yours"]
    assert worlds(log) == [1, 2, 1]
    assert_losses([float.fromhex(loss) for _, loss in surviving_losses(log)], expected, rtol=ROUNDING)
    seen = [sample for done in surviving(log).values() for entry in done for sample in entry.samples]
    assert sorted(seen) == list(range(6 * YOURS_STEPS))
