"""The places of baselines: what a place must do, and which place a folder's name means.

Runs in the pytest controller only.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from pytest_gpuperf.baselines.json_files import Files
from pytest_gpuperf.baselines.schema import Baselines


class Storage(Protocol):
    """A place that keeps the baselines of each hardware under its key; another place is another class like this."""

    def where(self, hardware_key: str) -> str:
        """What messages call the place of one hardware's baselines."""

    def hardware_keys(self) -> list[str]:
        """The hardware of which baselines are kept, in order."""

    def load(self, hardware_key: str) -> Baselines | None:
        """Reads the baselines of one hardware; None if there are none.

        Raises:
            BaselineError: What is kept is not what it should be.
        """

    def update(self, hardware_key: str, change: Callable[[Baselines | None], Baselines | None]) -> Baselines | None:
        """Loads, changes and saves, so that no other writer's change is lost.

        Args:
            hardware_key: Of the baselines.
            change: Makes the new baselines from the stored ones, None if there are none; returns None, or the stored
                ones, to leave them as they are.

        Returns:
            What change made.

        Raises:
            BaselineError: What is kept cannot be used, or the new baselines cannot be kept; the old ones are left.
        """


def make_storage(folder: Path) -> Storage:
    """The place that ``--baselines`` names, for pytest and for the commands: a folder of files."""
    return Files(folder)


def make_recording_journal_path(folder: Path, hardware_key: str) -> Path:
    """The local file in which a recording into that place notes what it has measured so far."""
    return folder / f".{hardware_key}.journal"
