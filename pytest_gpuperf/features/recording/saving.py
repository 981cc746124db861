"""Where a recording goes: into the stored baselines, or into a temporary folder."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from pytest_gpuperf.baselines.merge import Merged, Stamp, UpdatePolicy, merge
from pytest_gpuperf.baselines.schema import BaselineError, Baselines
from pytest_gpuperf.baselines.storage import Storage, make_storage


@dataclass(frozen=True, slots=True)
class Saved:
    """The place of a recording."""

    where: str
    """The place, as messages call it."""
    tests: int
    problem: str | None = None
    """Why it did not go where it should; None if it did."""
    merged: Merged | None = None
    """What became of each test; None if the file could not be written."""

    @property
    def nowhere(self) -> bool:
        """Whether it could not be written at all."""
        return self.problem is not None and not self.tests

    @property
    def failed(self) -> bool:
        """Whether something that was asked for was not done."""
        return self.problem is not None or (self.merged is not None and self.merged.failed)


def save(storage: Storage, candidate: Baselines, policy: UpdatePolicy, stamp: Stamp) -> Saved:
    """Merges what was measured into the stored baselines; into a temporary folder if those cannot be written.

    Args:
        storage: keeps the baselines of each hardware.
        candidate: what was measured.
        policy: what may be replaced.
        stamp: what the file keeps of the update.
    """
    key, match = candidate.hardware_key, candidate.match
    where = storage.where(key)
    outcomes: list[Merged] = []

    def change(stored: Baselines | None) -> Baselines | None:
        if stored is not None:
            stored.require(match, where)  # another run may have written it meanwhile
        outcomes.append(merge(stored or Baselines(key, match), candidate, policy, stamp))
        return outcomes[-1].baselines if outcomes[-1].written else None

    try:
        storage.update(key, change)
    except BaselineError as error:
        whole = merge(Baselines(key, match), candidate, UpdatePolicy(minimum_slowdown=policy.minimum_slowdown), stamp)
        try:
            elsewhere = make_storage(Path(tempfile.mkdtemp(prefix="gpuperf-")))
            elsewhere.update(key, lambda _: whole.baselines)
        except (OSError, BaselineError) as another:
            return Saved(where, 0, f"{error}; nor can it be kept in a temporary folder: got {another!r}")
        return Saved(elsewhere.where(key), len(candidate.tests), str(error))
    return Saved(where, len(outcomes[0].written), merged=outcomes[0])
