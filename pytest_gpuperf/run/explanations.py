"""What hypothesis says of lines that failing examples alone have run, without this plugin's own.

A program runs on the ranks, where hypothesis sees no line of it: all that it finds is how this plugin deals with a
failure, which explains none.
"""

from __future__ import annotations

import sys

_SCRUTINEER = "hypothesis.internal.scrutineer"  # loaded where a test is drawn
_FILES = "UNHELPFUL_LOCATIONS"  # its own list of such files; hypothesis has no public one
_OURS = "/pytest_gpuperf/**"


def leave_out_our_lines() -> None:
    """Has hypothesis pass over this plugin's files; does nothing where it is not loaded, or keeps no such list."""
    scrutineer = sys.modules.get(_SCRUTINEER)
    files = getattr(scrutineer, _FILES, None)
    if isinstance(files, tuple) and _OURS not in files:
        setattr(scrutineer, _FILES, (*files, _OURS))
