"""Jobs of the training script under torchrun, and the mishaps that are drawn for them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random

from pytest_gpuperf import Context
from suites.fault_tolerance.programs.training import MODULE, Training, train
from suites.shared.job_log import Entry, Mishap, plan_mishaps, read_log
from suites.shared.torchrun import DEADLINE, Job, Torchrun, meeting_place


def drawn(training: Training, world_size: int, seed: int) -> list[Mishap]:
    """Draws two kills and a hang, in the order in which they happen: at steps, and in the middle of a checkpoint.

    The rank that is killed in a checkpoint is the last one. So a checkpoint that rank 0 makes valid too early is torn.
    """
    random = Random(seed)
    kill, hang = sorted(random.sample(range(1, training.steps), 2))
    save = random.randrange(training.interval, training.steps, training.interval)
    victims = [random.randrange(world_size) for _ in range(2)]
    mishaps = [
        Mishap(kind="kill", rank=victims[0], step=kill),
        Mishap(kind="hang", rank=victims[1], step=hang),
        Mishap(kind="kill", rank=world_size - 1, step=save, place="save"),
    ]
    # The checkpoint before a step is written before that step begins.
    return sorted(mishaps, key=lambda mishap: (mishap.step, mishap.place))


def resumes_at(mishap: Mishap, training: Training) -> int:
    """The step that the attempt after a mishap must begin with: the one after the last whole checkpoint."""
    saved = mishap.step // training.interval * training.interval
    return saved - training.interval if mishap.place == "save" else saved


def run_job(
    folder: Path,
    training: Training,
    mishaps: Sequence[Mishap],
    *,
    ranks: int,
    gpus: str,
    max_restarts: int,
    timeout: float = DEADLINE,
) -> tuple[list[Entry], str]:
    """Runs the script under torchrun to its end; the job's log, and what it printed.

    Args:
        folder: of the job, which is made.
        training: what it trains.
        mishaps: what happens meanwhile.
        ranks: how many, all on one machine.
        gpus: for them, as CUDA_VISIBLE_DEVICES has them; empty for CPUs.
        max_restarts: how often torchrun may restart the ranks.
        timeout: seconds for all of it.

    Raises:
        JobFailed: it failed, or needed more restarts.
        JobTimeout: it did not end.
    """
    folder.mkdir()
    training.store(folder)
    plan_mishaps(folder, mishaps)
    job = Job(script=["-m", MODULE, str(folder)], ranks=ranks, max_restarts=max_restarts)
    with meeting_place() as meeting, Torchrun(job, meeting=meeting, log=folder / "output", gpus=gpus) as torchrun:
        torchrun.wait(timeout)
        return read_log(folder), torchrun.output


def whole(ctx: Context, folder: Path, training: Training) -> None:
    """Runs the same training without torchrun and without mishaps, on the test's own ranks."""
    assert ctx.group is not None
    train(folder, training, ctx.device, ctx.group)
