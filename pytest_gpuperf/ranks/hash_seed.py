"""The seed of Python's hashes of strings: one for all ranks of a run, in both arms of its races, or one for each rank.

Python reads it once, as a process starts. Ranks are forked, so they have the seed of the process that they come from. A
rank with another seed is a fresh interpreter. Equal seeds hide collectives whose order comes from a set.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Mapping

VARIABLE = "PYTHONHASHSEED"
_LARGEST = 2**32 - 1  # https://docs.python.org/3/using/cmdline.html#envvar-PYTHONHASHSEED
_MOST_BEFORE_A_RANK = 10**6  # so that three digits of a rank may follow


def is_seed(text: str) -> bool:
    """Whether Python takes the text for a seed."""
    return text in ("", "random") or (text.isascii() and text.isdecimal() and int(text) <= _LARGEST)


def make_rank_seeds(seed: str) -> str:
    """Return a seed for each rank, in which ``{rank}`` stands for the rank's number.

    Args:
        seed: of the run; empty or ``random`` if it is unknown.
    """
    return f"{int(seed) % _MOST_BEFORE_A_RANK}{{rank}}" if seed.isdecimal() else seed or "{rank}"


def hash_seed(environ: Mapping[str, str], run: str | None) -> str:
    """Return the user's own seed, or one that is drawn for this run.

    Args:
        environ: of the pytest process.
        run: names the run to all of its workers, which have one seed; None if it has one process.
    """
    drawn_from = os.urandom(16) if run is None else run.encode()
    return environ.get(VARIABLE) or str(1 + zlib.crc32(drawn_from) % _LARGEST)  # 0 would draw nothing at all
