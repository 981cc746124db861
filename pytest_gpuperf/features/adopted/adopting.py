"""Tests of other harnesses' classes: which classes are adopted, and how their tests reach the ranks."""

from __future__ import annotations

import os
import sys
import unittest
from collections.abc import Mapping
from dataclasses import replace
from typing import NoReturn

import pytest

from pytest_gpuperf.features.adopted.calls import ADOPTED, AdoptedClass, Call, Code, Home
from pytest_gpuperf.features.adopted.settings import Adoption, find_adoption
from pytest_gpuperf.hardware.machine import Machine
from pytest_gpuperf.ranks.spec import Opening
from pytest_gpuperf.run.current_ranks import CurrentRanks
from pytest_gpuperf.run.pytest_internals import list_arguments
from pytest_gpuperf.run.rank_supply import RankSupply
from pytest_gpuperf.run.selection import find_device_reason, make_capacity

_READ_ONCE = ("NCCL_", "GLOO_", "CUDA_", "OMP_", "MKL_")
"""How variables begin that libraries read once in a process's life: a warm rank would take no notice of them."""
_PYTESTS = frozenset({"PYTEST_CURRENT_TEST", "PYTEST_VERSION"})


class Adopting:
    """Has classes of other harnesses run on the ranks of this run."""

    def __init__(
        self,
        ranks: CurrentRanks,
        supply: RankSupply,
        machine: Machine,
        isolation: str | None,
        *,
        requires_gpus: bool = False,
    ) -> None:
        """Adopts no class yet.

        Args:
            ranks: of the test that runs.
            supply: has them.
            machine: what there is to run on.
            isolation: of classes that are not marked; None if they are not adopted.
            requires_gpus: whether a test that cannot run here fails.
        """
        self._ranks = ranks
        self._supply = supply
        self._machine = machine
        self._isolation = isolation
        self._requires_gpus = requires_gpus
        self._environ = _read_environ()
        """This process's when the run began: ranks inherit it, and each test sends what is different by then."""
        self._found: dict[type, str | None] = {}
        """Classes that were looked at, with why each cannot be adopted although it should."""
        self._changes: dict[str, str | None] = {}

    def look_at(self, collector: pytest.Collector, name: str, cls: type) -> None:
        """Adopts a class that is marked, or any that can be if the run adopts all.

        Args:
            collector: the module or class in which pytest found it; it has made no test of it yet.
            name: under which it stands there.
            cls: the class.
        """
        if cls in self._found:
            return
        adoption = find_adoption(cls)
        if adoption is None and self._isolation is None:
            return
        from pytest_gpuperf.features.adopted.families import find_family, find_plain_family, list_mixed

        if harnesses := list_mixed(cls):
            self._found[cls] = (
                f"{cls.__qualname__} derives from {' and '.join(harnesses)}, which start ranks each in its own way: "
                "derive from one of them"
            )
            return
        family = find_family(cls)
        if family is None and adoption is not None and adoption.world_sizes:
            family = find_plain_family(cls)
        elif adoption is not None and adoption.world_sizes:
            self._found[cls] = (
                f"{cls.__qualname__}: on_ranks was given world sizes {adoption.world_sizes}, and a class of "
                f"{'' if family is None else family.name} has its own: drop them, or override world_size in the class"
            )
            return
        if family is None:
            if adoption is not None:
                self._found[cls] = _describe_no_family(cls)
            return
        if adoption is not None and len(adoption.world_sizes) > 1:
            self._found[cls] = f"{cls.__qualname__}: on_ranks takes one world size, got {adoption.world_sizes}"
            return
        self._found[cls] = None
        if adoption is None:
            adoption = Adoption((), {"isolation": self._isolation})
        family.install(cls, AdoptedClass(_make_home(collector, name, cls), family.name, adoption, self))

    def run_plain(self, item: pytest.Function) -> bool:
        """Runs a test of a plain class on its ranks; returns whether it is one that was adopted."""
        __tracebackhide__ = True
        adopted: AdoptedClass | None = getattr(item.cls, ADOPTED, None)
        if adopted is None:
            return False
        from pytest_gpuperf.features.adopted.plain import Plain, run_plain

        if adopted.family != Plain.name:
            return False
        values = {name: item.funcargs[name] for name in list_arguments(item)}
        run_plain(adopted, item.originalname, values)
        return True

    def find_objection(self, item: pytest.Item) -> str | None:
        """Why the item, whose class should be adopted, cannot run; None if it can."""
        cls = getattr(item, "cls", None)
        if cls is None or cls not in self._found:
            return None
        if (reason := self._found[cls]) is not None:
            return reason
        if item.get_closest_marker("ranks") is not None:
            return (
                "the class runs on ranks with the world size of its harness, and the marker ranks "
                "gives it another: drop the marker, and give its keywords to on_ranks"
            )
        return None

    def enlist(self, world_size: int, adoption: Adoption, *, launcher: bool = False) -> None:
        """As ``Runner`` has it."""
        __tracebackhide__ = True
        nodeid = self._ranks.current.item.nodeid
        if world_size == 0 and not self._machine.gpus:
            self._skip("the class's world_size is 0 where there are no GPUs: there is no rank to run the test")
        if world_size < 1:
            raise ValueError(f"{nodeid}: the class's world_size is {world_size}: it must be 1 or more")
        marker = adoption.marker(world_size, nodeid)
        if (reason := find_device_reason(marker, world_size, make_capacity(self._machine))) is not None:
            self._skip(reason)
        self._changes = _find_changes(self._environ, _read_environ())
        once = {name: value for name, value in self._changes.items() if name.startswith(_READ_ONCE)}
        if once:
            env = {**dict(marker.env), **{name: value for name, value in once.items() if value is not None}}
            marker = replace(marker, env=tuple(sorted(env.items())))
        marker = replace(marker, launcher_env=launcher)
        self._ranks.enlist(marker, Opening.NOTHING, self._environ)

    def run(self, world_size: int, call: Call, timeout: float | None, *, outlives_deaths: bool = False) -> list[Code]:
        """As ``Runner`` has it."""
        __tracebackhide__ = True
        from pytest_gpuperf.features.adopted import on_rank

        call = replace(call, environ=self._changes)
        name = f"{call.home.name}.{call.method}"
        test = self._ranks.current
        test.timeout = test.marker.timeout or timeout or test.timeout
        try:
            return self._ranks.run(
                world_size, on_rank.run, (call,), {}, on_rank.run, name=name, outlives_deaths=outlives_deaths
            )
        except pytest.skip.Exception:
            raise
        except BaseException:
            self._supply.spoil(test, world_size)  # it may have left them as no other test expects to find them
            raise

    def _skip(self, reason: str) -> NoReturn:
        __tracebackhide__ = True
        if self._requires_gpus:
            pytest.fail(f"--require-gpus: {reason}", pytrace=False)
        raise unittest.SkipTest(reason)


def _read_environ() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in _PYTESTS}


def _find_changes(before: Mapping[str, str], now: Mapping[str, str]) -> dict[str, str | None]:
    names = {name for name in {*before, *now} if before.get(name) != now.get(name)}
    return {name: now.get(name) for name in sorted(names)}


def _make_home(collector: pytest.Collector, name: str, cls: type) -> Home:
    # By the name under which pytest found it, which need not be the name that it was defined by.
    names = [node.name for node in collector.listchain() if isinstance(node, pytest.Class)]
    found_in = collector.getparent(pytest.Module)
    module = cls.__module__ if found_in is None else found_in.obj.__name__
    return Home(module, getattr(sys.modules.get(module), "__file__", None), ".".join([*names, name]))


def _describe_no_family(cls: type) -> str:
    return (
        f"{cls.__qualname__}: on_ranks adopts classes that start processes as torch's MultiProcessTestCase and "
        "MultiProcContinuousTest or DeepSpeed's DistributedTest do, and this one derives from none, or starts them in "
        "its own way: have its tests take the fixture ranks instead. A plain class of pytest's needs a world size: "
        "@on_ranks(2)"
    )
