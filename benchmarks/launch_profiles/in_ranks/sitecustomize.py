"""Python imports this when it starts, and each process that it forks then samples its own stack.

The folder is on the path of a profiled pytest alone. What is forked there are ranks. A sample is a line of the rank's
file: when, and the number of a stack, which a line with ``#`` spells out when it comes first.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from types import FrameType

FOLDER = "GPUPERF_LAUNCH_PROFILE"  # a variable; as benchmarks.launch_profiles.stacks has it
_EVERY = 0.01  # seconds
_FLUSHED = 20  # samples: a rank may be killed


def _stack(frame: FrameType | None, package: str, suites: str) -> str:
    """The functions of the package and of the suites, and what the innermost of them has called, outermost first."""
    parts: list[str] = []
    while frame is not None:
        path = frame.f_code.co_filename
        if package in path or suites in path:
            parts.append(f"{path.rpartition(package)[2].rpartition(suites)[2]}:{frame.f_code.co_name}")
        elif not parts:
            parts.append(f"{path.rpartition(os.sep)[2]}:{frame.f_code.co_name}")
        frame = frame.f_back
    return ";".join(reversed(parts))


def _sample(folder: str) -> None:
    main, stacks = threading.main_thread().ident, dict[str, int]()
    with open(os.path.join(folder, f"{os.getpid()}.stacks"), "w") as file:
        for count in range(10**12):
            time.sleep(_EVERY)
            found = _stack(sys._current_frames().get(main or 0), "pytest_gpuperf" + os.sep, os.sep + "suites" + os.sep)
            if found not in stacks:
                stacks[found] = len(stacks)
                file.write(f"# {stacks[found]} {found}\n")
            file.write(f"{time.time():.3f} {stacks[found]}\n")
            if count % _FLUSHED == 0:
                file.flush()


def _begin() -> None:
    threading.Thread(target=_sample, args=(os.environ[FOLDER],), daemon=True).start()


if FOLDER in os.environ:
    os.register_at_fork(after_in_child=_begin)
