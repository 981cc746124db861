"""What the ranks of a job write down in a file that no kill loses, and mishaps that befall them on purpose.

A training script opens a ``JobLog`` when its process group is open, calls ``at`` where it may be killed, and
``stepped`` after each step. A job goes through attempts: each restart begins one, at the step of a checkpoint.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal, NoReturn, final

import torch
import torch.distributed as dist

_FILE, _MISHAPS = "log.jsonl", "mishaps.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mishap:
    """What befalls a rank, once in a job."""

    kind: Literal["kill", "hang", "raise"]
    """SIGKILL; the rank sleeps until somebody ends it; or it raises RuntimeError."""
    rank: int
    step: int
    place: str = "step"
    """Which call of ``JobLog.at`` it happens in."""
    until: int = 0
    """If it is given, the mishap happens in each attempt, until a world of this size has begun."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A line of the log."""

    event: Literal["began", "stepped", "saved", "mishap"]
    rank: int
    world_size: int
    attempt: int
    """Grows from attempt to attempt; the same on all ranks of one."""
    step: int
    """The number of the step: for ``began`` the first of the attempt, for ``saved`` the one after the checkpoint."""
    at: float
    """When the line was written, in seconds since the machine's start."""
    since: float
    """When the process began (``began``), or when the rank began with the step or the checkpoint."""
    loss: str = ""
    """The loss of a step, with all its bits: ``float.hex``."""
    samples: tuple[int, ...] = ()
    """That the rank saw in a step."""
    mishap: Mishap | None = None


@final
class JobLog:
    """A rank's own end of the log."""

    def __init__(self, folder: Path, step: int) -> None:
        """Opens the log for an attempt; all ranks do so together.

        Args:
            folder: of the job.
            step: the first one that this attempt does.
        """
        self._rank, self._world_size = dist.get_rank(), dist.get_world_size()
        self._attempt = _told_by_rank_0(time.monotonic_ns())
        path = folder / _MISHAPS
        planned = _mishaps(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else []
        log = read_log(folder)
        over = [entry.mishap for entry in log if entry.mishap is not None and not entry.mishap.until]
        worlds = {entry.world_size for entry in log} | {self._world_size}
        mine = [one for one in planned if one.rank == self._rank]
        self._mishaps = [one for one in mine if one not in over and one.until not in worlds]
        self._file = os.open(folder / _FILE, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._since = _process_began()
        self._write("began", step)

    def at(self, place: str, step: int) -> None:
        """Has the mishap happen that is planned for this rank here, if one is."""
        for mishap in self._mishaps:
            if (mishap.place, mishap.step) == (place, step):
                self._write("mishap", step, mishap=mishap)
                _happen(mishap)

    def stepped(self, step: int, loss: torch.Tensor, samples: Sequence[int] = ()) -> None:
        """Writes down the loss of a step that is done, and which samples this rank saw."""
        self._write("stepped", step, loss=float(loss).hex(), samples=tuple(samples))

    def saved(self, step: int) -> None:
        """Writes down that a checkpoint is complete, which the given step follows."""
        self._write("saved", step)

    def close(self) -> None:
        """Closes the file."""
        os.close(self._file)

    def _write(
        self,
        event: Literal["began", "stepped", "saved", "mishap"],
        step: int,
        *,
        loss: str = "",
        samples: tuple[int, ...] = (),
        mishap: Mishap | None = None,
    ) -> None:
        entry = Entry(
            event=event,
            rank=self._rank,
            world_size=self._world_size,
            attempt=self._attempt,
            step=step,
            at=since_boot(),
            since=self._since,
            loss=loss,
            samples=samples,
            mishap=mishap,
        )
        # One write, so that lines of several ranks do not mix.
        os.write(self._file, f"{json.dumps(asdict(entry))}\n".encode())
        os.fsync(self._file)
        self._since = since_boot()


def since_boot() -> float:
    """Seconds since the machine's start, the same clock in all processes and in /proc."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def plan_mishaps(folder: Path, mishaps: Iterable[Mishap]) -> None:
    """Writes down what is to happen in the job of this folder."""
    (folder / _MISHAPS).write_text(json.dumps([asdict(mishap) for mishap in mishaps]), encoding="utf-8")


def read_log(folder: Path) -> list[Entry]:
    """All lines of the job's log, in the order in which they were written; none before the first."""
    path = folder / _FILE
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    lines = text[: text.rfind("\n") + 1].splitlines()  # a line that is being written may be there in part
    return [_entry(**json.loads(line)) for line in lines]


def attempts_of(log: Iterable[Entry]) -> list[list[Entry]]:
    """The entries of each attempt, in the order of the attempts."""
    found: dict[int, list[Entry]] = {}
    for entry in log:
        found.setdefault(entry.attempt, []).append(entry)
    return [found[attempt] for attempt in sorted(found)]


def surviving(log: Iterable[Entry]) -> dict[int, list[Entry]]:
    """The steps that the final parameters are made of, each with its entry of every rank that did it.

    An attempt voids what earlier ones did from its first step on.
    """
    steps: dict[int, list[Entry]] = {}
    for attempt in attempts_of(log):
        first = attempt[0].step
        steps = {step: done for step, done in steps.items() if step < first}
        for entry in attempt:
            if entry.event == "stepped":
                steps.setdefault(entry.step, []).append(entry)
    return dict(sorted(steps.items()))


def surviving_losses(log: Iterable[Entry]) -> list[tuple[int, str]]:
    """Each surviving step with its loss, which all ranks must agree on."""
    found = []
    for step, done in surviving(log).items():
        told = {entry.rank: entry.loss for entry in done}
        assert len(done) == done[0].world_size, f"step {step}: {len(done)} of {done[0].world_size} ranks did it"
        assert len(set(told.values())) == 1, f"step {step}: the ranks' losses differ: {told}"
        found.append((step, done[0].loss))
    return found


def _entry(*, samples: Sequence[int], mishap: dict[str, object] | None, **others: object) -> Entry:
    (happened,) = _mishaps([mishap]) if mishap else (None,)
    return replace(Entry(**others, samples=tuple(samples)), mishap=happened)  # type: ignore[arg-type]


def _mishaps(stored: Iterable[dict[str, object]]) -> list[Mishap]:
    return [Mishap(**one) for one in stored]  # type: ignore[arg-type]


def _happen(mishap: Mishap) -> NoReturn:
    if mishap.kind == "raise":
        raise RuntimeError(f"planned for rank {mishap.rank} at {mishap.place} {mishap.step}")
    if mishap.kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    while True:
        time.sleep(1)


def _told_by_rank_0(number: int) -> int:
    told = torch.tensor(number, device="cuda" if dist.get_backend() == "nccl" else "cpu")
    dist.broadcast(told, 0)
    return int(told)


def _process_began() -> float:
    """When this process was started, in seconds since the machine's start: field 22 of /proc/self/stat (proc(5))."""
    fields = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return int(fields[19]) / os.sysconf("SC_CLK_TCK")
