"""What to do about failures whose own message does not say it."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_gpuperf.ranks.endings import Ending, Stuck
from pytest_gpuperf.ranks.messages import Raised

_IN_STORE = "torch/distributed/rendezvous.py"  # the innermost file of torch's own while it connects to a store
_CURES = {
    "trying to initialize the default process group twice": (
        "the ranks have a default group already: drop this call, or mark the test with launcher_env=True"
    ),
}


def list_cures(endings: Sequence[Ending]) -> list[str]:
    """Returns a line for each thing that the user can do.

    Args:
        endings: of a run that failed, one for each rank.
    """
    raised = [ending.message for ending in endings if isinstance(ending, Raised)]
    found = [cure for text, cure in _CURES.items() if any(text in message for message in raised)]
    if any(isinstance(ending, Stuck) and _IN_STORE in ending.stacks for ending in endings):
        found.append(
            "a rank waits for a store that nobody opens: as under torchrun, the launcher holds the store, so set no "
            'MASTER_ADDR and no MASTER_PORT, and pass no init_method="tcp://..."; or have rank 0 open it, with '
            'env={"TORCHELASTIC_USE_AGENT_STORE": "False"} of the marker'
        )
    return found
