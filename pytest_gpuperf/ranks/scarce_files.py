"""What to say if ranks cannot be started, above all for want of file descriptors."""

from __future__ import annotations

import errno
import os
import resource

from pytest_gpuperf.ranks.process import FILES

_TO_START = 8  # files that are open while ranks are forked, the forkserver's own among them
_USUAL = 1024  # files that most systems let a process have open


def describe_shortage(error: OSError, world_size: int) -> str:
    """Says what the system refused while so many ranks were started; of too few files, the limit and the cure."""
    if error.errno != errno.EMFILE:
        return f"got {error!r}"
    limit, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    there, needed = _open_files(limit), FILES * world_size + _TO_START
    enough = max(_USUAL, 1 << (there + needed).bit_length())
    cure = f"ulimit -n {enough}"
    if hard != resource.RLIM_INFINITY and hard < enough:
        cure += f"; the hard limit is {hard}: a new shell may have a higher one, or root can set it"
    return (
        f"too many open files. This process may have {limit} open at once, has {there} open without these ranks, and "
        f"needs about {needed} more for them: raise the limit ({cure})"
    )


def _open_files(limit: int) -> int:
    try:
        return len(os.listdir("/proc/self/fd")) - 1  # without the one that it takes to look
    except OSError:  # there is none left for it
        return limit
