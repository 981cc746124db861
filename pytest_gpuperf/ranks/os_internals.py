"""Names of ``os`` that are not public."""

from __future__ import annotations

import os


def read_undecoded(*, but: str) -> dict[object, object]:
    """Return this process's environment as ``os.environ`` holds it; publicly, each look decodes it all, in 16 us.

    Args:
        but: a variable that is left out.
    """
    found = dict(os.environ._data)  # type: ignore[attr-defined]
    found.pop(os.environ.encodekey(but), None)
    return found
