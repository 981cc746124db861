"""When a run looks for garbage: not in what its tests have imported, which is torch for the most part."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def imports_are_spared() -> Iterator[None]:
    """Collects no garbage while tests are imported, and leaves what they have imported out of later collections.

    Torch is 170,000 objects, none of them garbage. pytest looks at them five times when a run ends, and Python looks as
    it exits. Without torch nothing is left out. A collector that somebody has turned off stays off.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if "torch" in sys.modules:
            gc.freeze()
        if was_on:
            gc.enable()
