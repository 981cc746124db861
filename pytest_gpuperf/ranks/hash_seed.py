"""The seed of Python's hashes of strings: one for all ranks of a run, in both arms of its races.

Python reads it once, as a process starts. Ranks are forked, so they have the seed of the process that they come from.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Mapping

VARIABLE = "PYTHONHASHSEED"
_LARGEST = 2**32 - 1  # https://docs.python.org/3/using/cmdline.html#envvar-PYTHONHASHSEED


def hash_seed(environ: Mapping[str, str], run: str | None) -> str:
    """Return the user's own seed, or one that is drawn for this run.

    Args:
        environ: of the pytest process.
        run: names the run to all of its workers, which have one seed; None if it has one process.
    """
    drawn_from = os.urandom(16) if run is None else run.encode()
    return environ.get(VARIABLE) or str(1 + zlib.crc32(drawn_from) % _LARGEST)  # 0 would draw nothing at all
