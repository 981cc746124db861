"""DeepSpeed's ``DistributedTest`` and ``DistributedFixture``, as its ``tests/unit/common.py`` has them, by their names.

The file is a part of DeepSpeed's repository, and of no package; its descendants elsewhere keep the names. A conftest.py
beside it calls an object of the class in place of the test. What the class launches is replaced here; ``_dist_run``,
which opens the group and runs the test, runs on the ranks unchanged.
"""

from __future__ import annotations

import os
import pickle
import tempfile
import unittest
from pathlib import Path
from typing import Any

import cloudpickle

from pytest_gpuperf.features.adopted.calls import ADOPTED, AdoptedClass, Call, require_ends
from pytest_gpuperf.ranks.context import Context
from pytest_gpuperf.ranks.spec import LAUNCHER_VARIABLES, MASTER_PORT

_LAUNCHES = ("_launch_daemonic_procs", "_launch_non_daemonic_procs", "_launch_with_file_store")
_CURRENT = "_current_test"  # a bound method, which is sent by its name


class DeepSpeed:
    """``DistributedExec``: a pool of processes for each test or fixture."""

    name = "DistributedTest"

    def adopts(self, cls: Any) -> bool:
        """Whether the class launches processes as DeepSpeed's does."""
        marked = getattr(cls, "is_dist_test", False) or getattr(cls, "is_dist_fixture", False)
        return marked is True and all(callable(getattr(cls, name, None)) for name in (*_LAUNCHES, "_dist_run"))

    def install(self, cls: Any, adopted: AdoptedClass) -> None:
        """Replaces how the class launches its processes, without the half second that it waits after each."""
        setattr(cls, ADOPTED, adopted)
        cls._launch_daemonic_procs = cls._launch_non_daemonic_procs = _launch
        cls._launch_with_file_store = _launch_each

    def on_rank(self, cls: Any, context: Context, call: Call) -> None:
        """Does what the harness's process does."""
        state = pickle.loads(call.details["state"])
        case = object.__new__(cls)
        if (current := state.pop(_CURRENT, None)) is not None:
            state[_CURRENT] = getattr(case, current)
        vars(case).update(state)
        port = os.environ[MASTER_PORT]
        if not case.set_dist_env:
            for name in LAUNCHER_VARIABLES:
                os.environ.pop(name, None)
        said = _Said()
        message = [said] if getattr(case, "non_daemonic_procs", False) else []
        reason = case._dist_run(context.rank, context.world_size, port, call.details["init_method"], *message)
        reason = said.message or (reason if isinstance(reason, str) else "")
        case._dist_destroy()
        if reason:
            raise unittest.SkipTest(reason)

    def skip_reason(self, code: int) -> str | None:
        """None: its processes skip by a message."""
        return None


class _Said:
    """Stands for the queue to which a process puts why it skips."""

    message = ""

    def put(self, message: str) -> None:
        """Takes the message."""
        self.message = message


def _launch_each(case: Any, request: Any, world_size: int | list[int]) -> None:
    __tracebackhide__ = True
    for size in [world_size] if isinstance(world_size, int) else world_size:
        with tempfile.TemporaryDirectory() as folder:
            case._launch_procs(size, f"file://{Path(folder) / 'filestore'}")


def _launch(case: Any, num_procs: int, init_method: str) -> None:
    __tracebackhide__ = True
    adopted: AdoptedClass = getattr(case, ADOPTED)
    state = dict(vars(case))
    if _CURRENT in state:
        state[_CURRENT] = state[_CURRENT].__name__
    details = {"state": cloudpickle.dumps(state), "init_method": init_method}
    call = Call(adopted.home, DeepSpeed.name, state.get(_CURRENT, "run"), details)
    adopted.runner.enlist(num_procs, adopted.adoption, launcher=True)
    require_ends(adopted.runner.run(num_procs, call, float(case.exec_timeout)))
