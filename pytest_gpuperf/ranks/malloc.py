"""What glibc's malloc keeps of memory that was freed. Runs in rank processes; other C libraries have none of it."""

from __future__ import annotations

import ctypes
import os

_M_ARENA_MAX = -8  # malloc.h


def share_arena() -> None:
    """Has all threads allocate from the main one's arena, unless the environment says how many there are to be.

    Gloo has three threads for each group. With arenas of their own, 2 MiB stay at the end of one here and one there,
    which ``malloc_trim`` gives back of the main arena only, and a rank's memory moves by that from test to test.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    asked = "MALLOC_ARENA_MAX" in os.environ or "glibc.malloc.arena_max" in os.environ.get("GLIBC_TUNABLES", "")
    if mallopt is not None and not asked:
        mallopt(_M_ARENA_MAX, 1)


def trim() -> None:
    """Gives memory that was freed back to the kernel.

    Glibc keeps what a test freed, spread over its arenas, and takes more for the next test: half a MiB a test with
    all-reduces of 4 MiB. Giving it back takes 0.2 ms.
    """
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)
