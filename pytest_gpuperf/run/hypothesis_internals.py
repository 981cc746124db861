"""The only module that uses private names of hypothesis, in functions with tests that show what is relied on."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest_gpuperf

_SCRUTINEER = "hypothesis.internal.scrutineer"  # loaded where a test is drawn
_FILES = "UNHELPFUL_LOCATIONS"  # its own list of such files; hypothesis has no public one
_PACKAGE = Path(pytest_gpuperf.__file__).parent


def leave_out_our_lines() -> None:
    """Has hypothesis pass over this plugin's files where it says which lines only failing examples have run.

    A program runs on the ranks, where hypothesis sees no line of it: all that it finds is how this plugin deals with a
    failure, which explains none. It does nothing where hypothesis is not loaded, or keeps no such list.
    """
    scrutineer = sys.modules.get(_SCRUTINEER)
    files = getattr(scrutineer, _FILES, None)
    if not isinstance(files, tuple):
        return
    # Today's are patterns; before, they were what the paths of files end with.
    if any("*" in file for file in files):
        ours: tuple[str, ...] = (f"/{_PACKAGE.name}/**",)
    else:
        ours = tuple(map(str, sorted(_PACKAGE.rglob("*.py"))))
    if not set(ours) <= set(files):
        setattr(scrutineer, _FILES, (*files, *ours))


def is_drawn(test: object) -> bool:
    """Whether hypothesis draws the arguments of a test function or method.

    Newer versions have it as ``hypothesis.is_hypothesis_test``; this plugin imports no hypothesis of its own accord.
    """
    return bool(getattr(test, "is_hypothesis_test", False))
