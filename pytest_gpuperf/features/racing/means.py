"""The means of later launches, which all who launch tests of a run again share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from pytest_gpuperf.features.racing.arms.arm import Arm
from pytest_gpuperf.features.racing.arms.arms import Arms
from pytest_gpuperf.features.racing.spending import Spending
from pytest_gpuperf.repository import Repository


@dataclass(frozen=True, slots=True)
class Means:
    """What launches tests of a run again."""

    here: Arm
    """Makes launches of the present code in this process."""
    open_arms: Callable[[Sequence[str]], Arms]
    """Makes what opens the arms for tests of these node ids."""
    vacate: Callable[[], None]
    """Lets go of the GPUs, which the arms lease for themselves."""
    say: Callable[[str], None]
    """Prints a line while the run goes on."""
    spending: Spending
    """Makes the launches, and counts their seconds."""
    folder: Path
    """A folder in the repository."""
    cannot: str = ""
    """Why no suspect of the run can race; empty if it can."""
    require_on_nodes: Callable[[Repository, str], None] = lambda repository, commit: None
    """Looks for a commit on the other nodes of the run; raises CannotRace with the name of a node that lacks it."""


MEANS: pytest.StashKey[Means] = pytest.StashKey()
"""On the configuration of a run in which suspects are launched again."""
