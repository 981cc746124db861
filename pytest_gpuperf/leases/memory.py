"""Memory of dead ranks: the driver takes it back some time after their end, and the next owner would run out of it."""

import time
from collections.abc import Callable, Collection, Mapping
from typing import TypeAlias

UsedMemory: TypeAlias = Callable[[str], int]
"""Bytes in use on the GPU of a UUID."""

CORE = "core-"
"""How the names of cores begin; all other resources are GPUs, by whatever UUID their vendor gives them."""

RETURN_SECONDS = 10.0  # far more than a driver needs: longer means that somebody outside the leases uses the GPU
SLACK_BYTES = 64 * 1024**2  # for what the driver itself keeps, which varies; less than a CUDA context takes
POLL_SECONDS = 0.05  # no driver has an event for it, and to ask costs up to milliseconds


def has_memory(resource: str) -> bool:
    """Whether a resource is a GPU; cores have no memory to wait for."""
    return not resource.startswith(CORE)


def await_return(
    before: Mapping[str, int],
    used: UsedMemory,
    timeout: float,
    others: Callable[[], Collection[str]] = frozenset,
) -> tuple[str, ...]:
    """Waits until the used memory of GPUs is about what it was.

    Args:
        before: Bytes that were in use, by UUID.
        used: Bytes in use now.
        timeout: Seconds for all together.
        others: GPUs on which others are now. They may allocate, so these GPUs are not waited for.

    Returns:
        The GPUs whose memory did not come back.
    """
    until = time.monotonic() + timeout
    while True:
        missing = tuple(uuid for uuid, amount in before.items() if used(uuid) > amount + SLACK_BYTES)
        if missing and (shared := others()):
            missing = tuple(uuid for uuid in missing if uuid not in shared)
        left = until - time.monotonic()
        if not missing or left <= 0:
            return missing
        time.sleep(min(POLL_SECONDS, left))
