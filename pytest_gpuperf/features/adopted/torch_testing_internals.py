"""The harness classes of ``torch.testing._internal``, all of whose names are private.

Each class starts processes in ``setUp``, has them run its test method, and joins them in place of the method in the
process that runs unittest. Here starting means to enlist ranks, and joining is a run of them. What subclasses override,
``_run`` and ``_init_pg`` above all, runs on the ranks unchanged.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import time
import unittest
from collections.abc import Callable, Iterator
from functools import wraps
from pathlib import Path
from types import MethodType, ModuleType
from typing import Any

from pytest_gpuperf.features.adopted.calls import ADOPTED, AdoptedClass, Call, require_ends
from pytest_gpuperf.features.adopted.last_statement import ends_with
from pytest_gpuperf.features.adopted.subtests import PATIENCE, Subtests
from pytest_gpuperf.ranks.context import Context
from pytest_gpuperf.ranks.failures import RankDied
from pytest_gpuperf.ranks.multiprocessing_internals import as_child

HARNESS = "torch.testing._internal.common_distributed"
PRELOAD_IF_USED = {
    name: name
    for name in (
        HARNESS,
        "torch.testing._internal.common_fsdp",
        "torch.testing._internal.distributed._tensor.common_dtensor",
    )
}
"""Modules that take seconds to import; whoever forks ranks on CPUs imports them once. On GPUs they ask the driver."""


class Processes:
    """``MultiProcessTestCase``: fresh processes for each test. ``DTensorTestBase`` and ``FSDPTest`` are of it."""

    name = "MultiProcessTestCase"

    def adopts(self, cls: Any) -> bool:
        """Whether the class starts its processes as ``MultiProcessTestCase`` does."""
        base = _find_harness_class(self.name)
        # Those that override it have threads, or one process alone.
        return base is not None and issubclass(cls, base) and cls._spawn_processes in (base._spawn_processes, _enlist)

    def install(self, cls: Any, adopted: AdoptedClass) -> None:
        """Replaces how the class starts and joins its processes."""
        setattr(cls, ADOPTED, adopted)
        cls._spawn_processes = _enlist
        cls._join_processes = _join

    def on_rank(self, cls: Any, context: Context, call: Call) -> None:
        """Does what the harness's process does, its listener for signals aside."""
        harness: Any = sys.modules[HARNESS]
        came_to_its_end = False

        def run_test(case: Any, test_name: str, parent_pipe: object) -> None:
            nonlocal came_to_its_end
            _run_test(case, test_name)
            came_to_its_end = True

        harness.MultiProcessTestCase.run_test = run_test
        cls._spawn_processes = _refuse
        with as_child(f"process {context.rank}"), _subtests(cls, context) as subtests, subtests.collect():
            try:
                cls._run(
                    context.rank,
                    call.method,
                    call.details["file_name"],
                    _NoPipe(),
                    fake_pg=call.details["fake_pg"],
                )
            except SystemExit as leaving:
                # torch's distributed_test.py ends its processes so, after the test; others do as their last statement.
                if leaving.code or not (came_to_its_end or ends_with(leaving, call.method)):
                    raise

    def skip_reason(self, code: int) -> str | None:
        """The reason in torch's table of exit codes."""
        return _skip_reason(code)


class Continuous:
    """``MultiProcContinuousTest``: processes and a group for each class. Here each test opens a group of its own."""

    name = "MultiProcContinuousTest"

    def adopts(self, cls: Any) -> bool:
        """Whether the class starts its processes as ``MultiProcContinuousTest`` does."""
        base = _find_harness_class(self.name)
        if base is None or not issubclass(cls, base):
            return False
        if hasattr(cls, ADOPTED):
            return True
        return all(_unwrap_function(cls, name) is _unwrap_function(base, name) for name in _OF_CONTINUOUS)

    def install(self, cls: Any, adopted: AdoptedClass) -> None:
        """Replaces how the class starts its processes, and how its tests wait for them."""
        if not hasattr(cls, ADOPTED):
            cls._spawn_processes = classmethod(_spawn_nothing)
            cls._worker_run_main_wait = _await_result
        setattr(cls, ADOPTED, adopted)

    def on_rank(self, cls: Any, context: Context, call: Call) -> None:
        """Does what the harness's worker does for its first test."""
        cls._spawn_processes = classmethod(_refuse_class)
        cls._worker_run_main_wait = _bind_test
        cls.rank, cls.world_size = context.rank, context.world_size
        cls._init_pg(context.rank, context.world_size, call.details["file_name"])
        with as_child(f"process {context.rank}"), _subtests(cls, context) as subtests, subtests.collect():
            cls._run_test_given_id(call.details["id"])

    def skip_reason(self, code: int) -> str | None:
        """The reason in torch's table of exit codes."""
        return _skip_reason(code)


_CURE = ", or list the test in skip_return_code_checks if its ranks are meant to leave"
_OF_CONTINUOUS = ("_spawn_processes", "_ensure_processes_spawned", "_worker_run_main_wait")


def _enlist(case: Any) -> None:
    if case.rank != case.MAIN_PROCESS_RANK:
        raise _make_spawn_error(case)
    adopted: AdoptedClass = getattr(case, ADOPTED)
    adopted.runner.enlist(int(case.world_size), adopted.adoption)


def _join(case: Any, test: Callable[[], None]) -> None:
    __tracebackhide__ = True
    adopted: AdoptedClass = getattr(case, ADOPTED)
    details = {"file_name": case.file_name, "fake_pg": getattr(case, "fake_pg", False)}
    call = Call(adopted.home, Processes.name, _read_method_name(case), details)
    expected = case.special_return_code_checks.get(test, 0)
    anything = test in case.skip_return_code_checks
    ends = anything or bool(expected)
    try:
        codes = adopted.runner.run(int(case.world_size), call, _read_timeout(case), outlives_deaths=ends)
    except RankDied as death:
        as_expected = anything or (bool(expected) and death.codes.get(0) == expected)
        if as_expected and not death.others_returned:
            death.add_note("the test expects that ranks end, and not this: another rank raised, or did not return")
        if not as_expected or not death.others_returned:
            raise
        return
    finally:
        with contextlib.suppress(OSError):
            os.remove(case.file_name)
    if anything or (test in case.special_return_code_checks and codes[0] == expected):
        return
    if expected:
        raise AssertionError(
            f"the test ended on rank 0 with code {codes[0] or 0}; expected {expected} by special_return_code_checks: "
            "correct the test, or its entry there"
        )
    require_ends(codes, _CURE)  # of all ranks; the harness looks at rank 0 alone


def _spawn_nothing(kind: Any, world_size: int) -> None:
    kind.processes, kind.task_queues, kind.completion_queues = [], [], _NoQueues()
    kind.rdvz_file = os.path.join(tempfile.gettempdir(), "no-such-rendezvous")


def _await_result(case: Any, test: Callable[[], None]) -> Any:
    @wraps(test)
    def wrapper(case: Any) -> None:
        __tracebackhide__ = True
        adopted: AdoptedClass = getattr(case, ADOPTED)
        world_size = int(type(case).world_size)
        adopted.runner.enlist(world_size, adopted.adoption)
        with tempfile.TemporaryDirectory() as folder:
            details = {"file_name": str(Path(folder) / "rendezvous"), "id": case.id()}
            call = Call(adopted.home, Continuous.name, _read_method_name(case), details)
            require_ends(adopted.runner.run(world_size, call, _read_timeout(case)))

    return MethodType(wrapper, case)


class _NoQueues:
    """Stands for the queues of results: a test that waits for them was made before its class was adopted."""

    def __iter__(self) -> Iterator[object]:
        raise RuntimeError("a test object that was made before its class was adopted cannot run on ranks")


class _NoPipe:
    """Stands for the pipe to the harness's parent, which nobody reads here."""

    def send(self, message: object) -> None:
        """Drops a message."""

    def close(self) -> None:
        """Does nothing."""


def _run_test(case: Any, test_name: str) -> None:
    from torch.testing._internal.common_utils import set_rng_seed

    os.environ["TORCH_SHOW_CPP_STACKTRACES"] = "1"
    set_rng_seed()
    getattr(case, test_name)()
    if case.destroy_pg_upon_exit:
        import torch.distributed as dist

        with contextlib.suppress(AssertionError, ValueError):  # the test did it
            dist.destroy_process_group()


def _bind_test(case: Any, test: Callable[[], None]) -> Any:
    return MethodType(wraps(test)(lambda _: test()), case)


def _refuse(case: Any) -> None:
    raise _make_spawn_error(case)


def _refuse_class(kind: Any, world_size: int) -> None:
    raise _make_spawn_error(kind("runTest"))


def _make_spawn_error(case: Any) -> RuntimeError:
    return RuntimeError(
        f"{case.id()} calls _spawn_processes on a rank, which would start a whole world of processes from each rank: "
        "call it in setUp, which runs in the pytest process"
    )


@contextlib.contextmanager
def _subtests(cls: Any, context: Context) -> Any:
    subtests = Subtests(lambda number: _await_failure_on_all(context, number))
    if cls.subTest is not unittest.TestCase.subTest:
        yield subtests  # the class has its own
        return
    cls.subTest = lambda case, msg=None, **params: subtests.subtest(msg, **params)
    try:
        yield subtests
    finally:
        del cls.subTest


def _await_failure_on_all(context: Context, number: int) -> bool:
    store, key = context.control, f"gpuperf/subtest/{number}"
    failed, until = store.add(key, 1), time.monotonic() + PATIENCE
    while failed < context.world_size and time.monotonic() < until:
        time.sleep(0.005)
        failed = store.add(key, 0)
    return bool(failed == context.world_size)


def _find_harness_class(name: str) -> Any:
    # A class that derives from it was defined by a module that imported it.
    return getattr(sys.modules.get(HARNESS), name, None)


def _unwrap_function(cls: Any, name: str) -> object:
    found = getattr(cls, name)
    return getattr(found, "__func__", found)


def _read_method_name(case: Any) -> str:
    return str(case._testMethodName)


def _read_timeout(case: Any) -> float:
    harness: ModuleType = sys.modules[HARNESS]
    return float(harness.get_timeout(case.id()))


def _skip_reason(code: int) -> str | None:
    harness: Any = sys.modules[HARNESS]
    return next((skip.message for skip in harness.TEST_SKIPS.values() if skip.exit_code == code), None)
