"""A job whose ranks are killed and hang has the losses of one that nothing befell, bit by bit."""

from __future__ import annotations

import os
import re
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch.func import functional_call
from torch.nn import functional

from pytest_gpuperf import Context, Ranks
from suites.fault_tolerance.programs.job import drawn, resumes_at, run_job, whole
from suites.fault_tolerance.programs.lost_time import lost
from suites.fault_tolerance.programs.training import DROPOUT, MOMENTUM, Training
from suites.shared.comparison import assert_losses
from suites.shared.course import IGNORED, LR, ROUNDING, Course
from suites.shared.job_log import Entry, Mishap, attempts_of, plan_mishaps, read_log, since_boot, surviving_losses
from suites.shared.step_folders import StepFolders
from suites.shared.torchrun import DETERMINISTIC, Job, JobFailed, Torchrun, meeting_place, visible_gpus

pytestmark = pytest.mark.ranks(2, nodes=1, env=DETERMINISTIC)

PATIENCE = {"gloo": 3.0, "nccl": 5.0}  # seconds in a collective; the first one on GPUs loads kernels
Losses = list[tuple[int, str]]  # of each step, in all its bits
SPARE = 3  # restarts beyond the mishaps: on a busy machine a rank may wait in vain for one that is merely slow
ENDED_BY = {
    "gloo": r"Timed out waiting {}ms",
    "nccl": r"Watchdog caught collective operation timeout.*Timeout\(ms\)={}",
}


def assert_resumed(log: list[Entry], training: Training, mishaps: list[Mishap]) -> None:
    """Every mishap happened, and the attempt after it began behind the last whole checkpoint."""
    happened = []
    for before, after in pairwise(attempts_of(log)):
        for mishap in (entry.mishap for entry in before if entry.mishap is not None):
            happened.append(mishap)
            expected = resumes_at(mishap, training)
            assert after[0].step == expected, f"after {mishap} steps go on at {after[0].step}, not at {expected}"
    assert happened == mishaps


def assert_no_trace(ranks: Ranks, folder: Path, training: Training, expected: Losses, gpus: str) -> None:
    """Draws mishaps by the training's seed, and runs two jobs side by side: one is killed twice, and one hangs."""
    mishaps = drawn(training, ranks.world_size, training.seed)
    jobs = {kind: [mishap for mishap in mishaps if mishap.kind == kind] for kind in ("kill", "hang")}

    def run(kind: str) -> tuple[list[Entry], str]:
        restarts = len(jobs[kind]) + SPARE
        own = folder.with_name(f"{folder.name}-{kind}")
        return run_job(own, training, jobs[kind], ranks=ranks.world_size, gpus=gpus, max_restarts=restarts)

    with ThreadPoolExecutor() as pool:  # each waits for others most of the time: to be imported, or to be given up
        ran = dict(zip(jobs, pool.map(run, jobs), strict=True))
    assert len(expected) == training.steps
    for kind, (log, _) in ran.items():
        assert surviving_losses(log) == expected, f"seed {training.seed}: {jobs[kind]}"
        assert_resumed(log, training, jobs[kind])
    log, output = ran["hang"]
    (hang,) = lost(log)
    assert hang.detection >= training.patience, f"ended {hang.detection} s after it hung: not by the timeout"
    assert re.search(ENDED_BY[ranks.backend].format(round(1000 * training.patience)), output), output


def losses_on_one_device(ctx: Context, training: Training, world_size: int) -> list[float]:
    """The loss of each step, from all ranks' batches and dropout; SGD with momentum written out anew."""
    course, device = Course(training.seed, training.steps), ctx.device
    network = course.network().to(device)
    parameters = {name: value.detach().clone() for name, value in network.named_parameters()}
    velocity = {name: torch.zeros_like(value) for name, value in parameters.items()}
    generators = torch.cuda if device.type == "cuda" else torch
    random = []
    for rank in range(world_size):
        torch.manual_seed(16 * training.seed + rank)
        random.append(generators.get_rng_state())
    found = []
    for step in range(training.steps):
        leaves = {name: value.requires_grad_() for name, value in parameters.items()}
        losses = []
        for rank in range(world_size):
            x, classes = (part.to(device) for part in course.batch(rank, step))
            generators.set_rng_state(random[rank])
            output = functional_call(network, leaves, (functional.dropout(x, DROPOUT),))
            random[rank] = generators.get_rng_state()
            losses.append(functional.cross_entropy(output, classes, ignore_index=IGNORED))
        loss = torch.stack(losses).mean()
        gradients = torch.autograd.grad(loss, list(leaves.values()))
        velocity = {
            name: MOMENTUM * velocity[name] + gradient for name, gradient in zip(leaves, gradients, strict=True)
        }
        parameters = {name: value.detach() - LR / (1 + step) * velocity[name] for name, value in leaves.items()}
        found.append(loss.item())
    return found


def test_training_resumes_exactly(ranks: Ranks, tmp_path: Path) -> None:
    """Without torchrun: training stops at some steps, and goes on in the same processes.

    What is never interrupted trains as one device does. The last two checkpoints are kept.
    """
    stops = (2, 4, 9, 13, Training(seed=1).steps)
    for folder, ends in (("whole", stops[-1:]), ("resumed", stops)):
        (tmp_path / folder).mkdir()
        for steps in ends:
            ranks.run(whole, tmp_path / folder, Training(seed=1, steps=steps))
    log, interval = read_log(tmp_path / "resumed"), Training(seed=1).interval
    whole_losses = surviving_losses(read_log(tmp_path / "whole"))
    assert surviving_losses(log) == whole_losses
    expected = ranks.run(losses_on_one_device, Training(seed=1), ranks.world_size)[0]
    # In float64; ranks add the same numbers in another order.
    assert_losses([float.fromhex(loss) for _, loss in whole_losses], expected, rtol=ROUNDING)
    assert StepFolders(tmp_path / "resumed").steps() == [12, 15]
    assert [attempt[0].step for attempt in attempts_of(log)] == [
        stop // interval * interval for stop in (0, *stops[:-1])
    ]


@pytest.mark.long
def test_mishaps_leave_no_trace(ranks: Ranks, tmp_path: Path, soak_seconds: float) -> None:
    """With --soak SECONDS, jobs after jobs with other mishaps."""
    begun, seed = time.monotonic(), 0
    gpus = ranks.run(visible_gpus)[0]
    while seed == 0 or time.monotonic() < begun + soak_seconds:
        training, folder = Training(seed=seed, patience=PATIENCE[ranks.backend]), tmp_path / f"whole-{seed}"
        folder.mkdir()
        ranks.run(whole, folder, training)
        assert_no_trace(ranks, tmp_path / f"job-{seed}", training, surviving_losses(read_log(folder)), gpus)
        seed += 1


@pytest.mark.long
@pytest.mark.ranks(4, 8, nodes=1, device="cuda", largest=True)
def test_mishaps_of_many_ranks(ranks: Ranks, tmp_path: Path) -> None:
    """Sums of three and more depend on NCCL's order, which is the job's own: the whole one is under torchrun too."""
    training, gpus = Training(seed=0, patience=PATIENCE[ranks.backend]), ranks.run(visible_gpus)[0]
    log, _ = run_job(tmp_path / "whole", training, [], ranks=ranks.world_size, gpus=gpus, max_restarts=0)
    assert_no_trace(ranks, tmp_path / "job", training, surviving_losses(log), gpus)


def test_a_checkpoint_is_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill leaves the kernel's page cache alone, power that fails does not: files and names are synced first."""
    calls: list[tuple[str, str, int]] = []
    sync, rename = os.fsync, os.rename

    def noted_sync(handle: int) -> None:
        sync(handle)
        path = Path(os.readlink(f"/proc/self/fd/{handle}"))
        calls.append(("sync", path.name, path.stat().st_size if path.is_file() else 0))

    def noted_rename(source: Path, target: Path) -> None:
        calls.append(("rename", Path(source).name, 0))
        rename(source, target)

    monkeypatch.setattr("os.fsync", noted_sync)
    monkeypatch.setattr("os.rename", noted_rename)
    folders = StepFolders(tmp_path)
    for rank in range(2):
        folders.write(3, f"rank-{rank}.pt", {"value": torch.full((100,), rank)})
    folders.commit(3)
    files = [("sync", f"rank-{rank}.pt", (tmp_path / "step-3" / f"rank-{rank}.pt").stat().st_size) for rank in range(2)]
    partial = "step-3.partial"
    assert calls == [*files, ("sync", partial, 0), ("rename", partial, 0), ("sync", tmp_path.name, 0)]


RAISING = """
import sys
with open(sys.argv[1], "a") as file:
    file.write("begun ")
raise RuntimeError("the data set is gone")
"""


@pytest.mark.long
def test_a_script_that_always_raises_uses_up_the_restarts(tmp_path: Path) -> None:
    script, begun = tmp_path / "raising.py", tmp_path / "begun"
    script.write_text(RAISING, encoding="utf-8")
    job = Job(script=[str(script), str(begun)], max_restarts=2)
    with meeting_place() as meeting, Torchrun(job, meeting=meeting, log=tmp_path / "output") as torchrun:
        told = (
            r"raising.py .* ended with status 1 instead of 0, with max_restarts=2: RuntimeError: the data set is gone"
        )
        with pytest.raises(JobFailed, match=told):
            torchrun.wait()
    assert begun.read_text(encoding="utf-8").split() == ["begun"] * 3


YOURS = """
import sys
from pathlib import Path

import torch

from suites.shared.job_log import JobLog
from suites.shared.opened_groups import opened_groups

folder = Path(sys.argv[1])
checkpoint = folder / "mine.pt"
with opened_groups(patience=60) as (device, group):
    x, first = torch.ones(3, dtype=torch.float64, device=device), 0
    if checkpoint.exists():
        x, first = torch.load(checkpoint, map_location=device)
    log = JobLog(folder, first)
    for step in range(first, 9):
        log.at("step", step)  # here your rank is killed
        loss = (x.cos() * x).sum()
        x = x - 0.1 * (x.cos() - x * x.sin())
        log.stepped(step, loss)
        if step % 4 == 3:
            torch.save((x, step + 1), folder / "partial")
            (folder / "partial").rename(checkpoint)
"""


def assert_clock(log: list[Entry], begun: float, ended: float) -> None:
    """Processes begin within the test; what a rank does begins when it has written down what it did before."""
    for attempt in attempts_of(log):
        before = begun
        for entry in attempt:
            assert before <= entry.since <= entry.at <= ended, f"{entry}, after {before} s and before {ended} s"
            before = entry.at


@pytest.mark.long
def test_your_own_script(ranks: Ranks, tmp_path: Path) -> None:
    """Yours needs the lines with ``log``. One rank does here: the whole job and the killed one run side by side."""
    script = tmp_path / "yours.py"
    script.write_text(YOURS, encoding="utf-8")
    gpu = ranks.run(visible_gpus)[0].partition(",")[0]
    folders = [tmp_path / "whole", tmp_path / "killed"]
    begun = since_boot()
    with ExitStack() as stack:
        agents = []
        for folder in folders:
            folder.mkdir()
            plan_mishaps(folder, [Mishap(kind="kill", rank=0, step=6)] if folder.name == "killed" else [])
            meeting = stack.enter_context(meeting_place())
            job = Job(script=[str(script), str(folder)], max_restarts=1)
            agents.append(stack.enter_context(Torchrun(job, meeting=meeting, log=folder / "output", gpus=gpu)))
        for agent in agents:
            agent.wait()
    for folder in folders:
        assert_clock(read_log(folder), begun, since_boot())
    expected, killed = (surviving_losses(read_log(folder)) for folder in folders)
    assert killed == expected
    assert len(expected) == 9
    assert [attempt[0].step for attempt in attempts_of(read_log(folders[1]))] == [0, 4]
