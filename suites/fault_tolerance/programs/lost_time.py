"""The time that a job lost: what each mishap cost, and the share of time that was of use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from suites.shared.job_log import Entry, Mishap, attempts_of, surviving


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """What a mishap cost, in seconds."""

    mishap: Mishap
    detection: float
    """From the mishap until the launcher has ended the other ranks and starts a new process."""
    restart: float
    """From then until all ranks have loaded the checkpoint: interpreter, imports, process group."""
    repeated: float
    """For steps and checkpoints that were done before."""

    @property
    def total(self) -> float:
        """All of it."""
        return self.detection + self.restart + self.repeated


def lost(log: Sequence[Entry]) -> list[Lost]:
    """The cost of each mishap after which the job went on, in the order of time."""
    found = []
    done: set[int] = set()  # in all attempts so far: the last one may have ended before it had repeated them
    for before, after in pairwise(attempts_of(log)):
        done |= {entry.step for entry in before if entry.rank == 0 and entry.event == "stepped"}
        mishap = next((entry for entry in before if entry.mishap), None)
        if mishap is None or mishap.mishap is None:
            continue
        began = [entry for entry in after if entry.event == "began"]
        started = min(entry.since for entry in began)
        resumed = max(entry.at for entry in began)
        again = [entry.at for entry in after if entry.rank == 0 and entry.event == "stepped" and entry.step in done]
        found.append(
            Lost(
                mishap=mishap.mishap,
                detection=started - mishap.at,
                restart=resumed - started,
                repeated=max(again, default=resumed) - resumed,
            )
        )
    return found


def measured_goodput(log: Sequence[Entry]) -> float:
    """The share of time that went into steps that survive, on rank 0, from the first process to the last step."""
    useful = sum(entry.at - entry.since for done in surviving(log).values() for entry in done if entry.rank == 0)
    begun = min(entry.since for entry in log)
    ended = max(entry.at for entry in log if entry.event == "stepped")
    return useful / (ended - begun)
