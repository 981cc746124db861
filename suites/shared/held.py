"""A torchrun that is ready at once when it is wanted: ``python -P held.py FILE ARGUMENTS...``, a process of its own.

To import torch takes a machine's agent seconds. It does so first, and then waits for the file.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

from torch.distributed import run


def _main(awaited: Path, arguments: Sequence[str]) -> None:
    while not awaited.exists():
        time.sleep(0.02)
    run.main(arguments)


if __name__ == "__main__":
    _main(Path(sys.argv[1]), sys.argv[2:])
