"""Plain classes of pytest's whose tests expect that torchrun runs pytest itself, once on every rank.

Megatron's tests are such: ``setup_method`` opens groups, and the test runs on all ranks at once. Here pytest runs once,
resolves parameters and fixtures, and sends their values to the ranks, where the class is set up and its method called.
"""

from __future__ import annotations

import pickle
import unittest
from collections.abc import Mapping
from typing import Any

import cloudpickle

from pytest_gpuperf.features.adopted.calls import ADOPTED, AdoptedClass, Call, require_ends
from pytest_gpuperf.ranks.context import Context

_OF_THE_RANKS = ("setup_class", "setup_method", "teardown_method", "teardown_class")


class Plain:
    """A class that derives from no harness."""

    name = "torchrun"

    def adopts(self, cls: Any) -> bool:
        """Whether the class is one of pytest's own; unittest's have processes of a harness or none."""
        return not issubclass(cls, unittest.TestCase)

    def install(self, cls: Any, adopted: AdoptedClass) -> None:
        """Hides from pytest what sets the class up: that belongs to the ranks."""
        setattr(cls, ADOPTED, adopted)
        for name in _OF_THE_RANKS:
            if hasattr(cls, name):
                setattr(cls, name, None)

    def on_rank(self, cls: Any, context: Context, call: Call) -> None:
        """Sets the class up, calls the method, and tears the class down."""
        values: Mapping[str, Any] = pickle.loads(call.details["values"])
        if (found := getattr(cls, "setup_class", None)) is not None:
            found()
        case = cls()
        method = getattr(case, call.method)
        _call(case, "setup_method", method)
        method(**values)
        # Not after a failure: it would wait for the other ranks in a barrier, and the ranks are replaced anyway.
        _call(case, "teardown_method", method)
        if (found := getattr(cls, "teardown_class", None)) is not None:
            found()

    def skip_reason(self, code: int) -> str | None:
        """None: it has no such codes."""
        return None


def run_plain(adopted: AdoptedClass, method: str, values: Mapping[str, Any]) -> None:
    """Runs a test of a plain class on its ranks, in the pytest process.

    Args:
        adopted: of its class.
        method: its name.
        values: of its parameters and fixtures.
    """
    __tracebackhide__ = True
    (world_size,) = adopted.adoption.world_sizes
    adopted.runner.enlist(world_size, adopted.adoption, launcher=True)
    call = Call(adopted.home, Plain.name, method, {"values": cloudpickle.dumps(dict(values))})
    require_ends(adopted.runner.run(world_size, call, None))


def _call(case: Any, name: str, method: Any) -> None:
    found = getattr(case, name, None)
    if found is None:
        return
    if found.__code__.co_argcount > 1:
        found(method)
    else:
        found()
