"""Which of xdist's workers runs which tests, where tests share GPUs."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from xdist.remote import Producer
    from xdist.scheduler import LoadScopeScheduling

WIDE = "wide"
_WORLD = re.compile(r"[\[-](\d+)ranks?(?=[\]-])")  # as collection.parametrize names it


def scheduler(config: pytest.Config, log: Producer, gpus: int) -> LoadScopeScheduling | None:
    """A scheduler that has tests of more than half of the GPUs run by one worker; None where xdist's own will do.

    Two such tests can never run side by side. Were they spread over the workers, each of these would start ranks for
    every world size, which takes seconds each time, and all of them one after another. They come last: in between, all
    GPUs would have to be free at once for each of them.

    Args:
        config: pytest's.
        log: xdist's.
        gpus: how many the run uses.
    """
    if not gpus or config.getoption("dist") != "load":  # another one was asked for by name
        return None
    from xdist.scheduler import LoadScopeScheduling

    class WideTestsTogether(LoadScopeScheduling):  # type: ignore[misc]
        """Hands out tests one by one, but the wide ones as a whole."""

        def _split_scope(self, nodeid: str) -> str:
            return WIDE if is_wide(nodeid, gpus) else nodeid

        def _assign_work_unit(self, node: Any) -> None:
            if WIDE in self.workqueue:
                self.workqueue.move_to_end(WIDE)
            super()._assign_work_unit(node)

    return WideTestsTogether(config, log)


def is_wide(nodeid: str, gpus: int) -> bool:
    """Whether a test takes more than half of so many GPUs, by the world size in its node id."""
    world = _WORLD.search(nodeid)
    return world is not None and 2 * int(world[1]) > gpus
