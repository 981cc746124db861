"""What happens to tests when they are collected: world sizes, reasons to skip, order, launches."""

from __future__ import annotations

import os
from collections.abc import Container, Sequence
from dataclasses import replace
from typing import TypeGuard

import pytest

from pytest_gpuperf.hardware.machine import Machine
from pytest_gpuperf.markers import ALL, RanksMarker, find_ranks_marker
from pytest_gpuperf.options import Options
from pytest_gpuperf.ranks.placement import Capacity, NoPlaceError, deal
from pytest_gpuperf.report.keyword import RANKS_KEYWORD
from pytest_gpuperf.run.body_hash import hash_body
from pytest_gpuperf.run.launches import find_launch, repeat
from pytest_gpuperf.run.pytest_internals import find_parameter, is_of_unittest, is_skipped, iterate_definitions

WORLD_PARAM = "ranks"  # the fixture that the marker parametrizes
PLUGIN = "pytest_gpuperf.plugin"  # where the fixtures are
LACKS = pytest.StashKey[str]()
"""Why an item cannot run here, where that is a failure."""


def parametrize(metafunc: pytest.Metafunc, gpus: int, nodes: int = 1, *, largest: bool = False) -> None:
    """Gives a test that uses ranks one variant for each world size of its marker.

    Args:
        metafunc: the test.
        gpus: how many the run uses; 0 for gloo.
        nodes: how many nodes it has.
        largest: whether the run has only the largest world of each test.
    """
    nodeid = metafunc.definition.nodeid
    if is_foreign(metafunc.definition, WORLD_PARAM):
        return
    try:
        marker = find_ranks_marker(metafunc.definition, nodeid)
    except ValueError as error:
        raise pytest.fail.Exception(str(error), pytrace=False) from None  # else pytest tells it twice
    if WORLD_PARAM not in metafunc.fixturenames:
        if any(mark.name == "ranks" for mark in metafunc.definition.own_markers):
            pytest.fail(
                f"{nodeid}: the test has the marker ranks and does not use ranks: add the fixture ranks or perf to its "
                "arguments, or remove the marker",
                pytrace=False,
            )
        return
    if marker is None:
        pytest.fail(
            f"{nodeid}: the test uses ranks and does not say how many: mark it, for example, @pytest.mark.ranks(2)",
            pytrace=False,
        )
    sizes = marker.choose_sizes(gpus, nodes, largest=largest)
    metafunc.parametrize(
        WORLD_PARAM,
        sizes,
        indirect=True,
        scope="session",
        ids=[f"{size}rank{'s' if size > 1 else ''}" for size in sizes],
    )


def uses(node: pytest.Item, fixture: str) -> bool:
    """Whether a test has this plugin's fixture, and not another of its name that knows nothing of it."""
    for module, arguments in iterate_definitions(node, fixture):
        if module == PLUGIN:
            return True
        if fixture not in arguments:
            return False
    return False


def is_foreign(node: pytest.Item, fixture: str) -> bool:
    """Whether a test has a fixture or a parameter of this name that is not this plugin's."""
    return fixture in getattr(node, "fixturenames", ()) and not uses(node, fixture)


def lacks_variants(item: pytest.Item) -> bool:
    """Whether the item is to run on ranks and cannot, as pytest makes no variants of a unittest.TestCase's methods."""
    if not is_of_unittest(item) or is_skipped(item):
        return False
    marks = [*item.own_markers, *(item.parent.own_markers if item.parent is not None else ())]
    marked = any(mark.name == "ranks" for mark in marks) and not is_foreign(item, WORLD_PARAM)
    return marked or uses(item, WORLD_PARAM)


def world_size(item: pytest.Item) -> int | None:
    """The item's world size; None if it uses no ranks."""
    return find_parameter(item, WORLD_PARAM) if uses(item, WORLD_PARAM) else None


def mark_items(item: pytest.Item) -> None:
    """Marks a user of the perf fixture as a perf test, so that ``-m perf`` means what it says, and tests on ranks."""
    if uses(item, "perf") and not is_perf(item):
        item.add_marker("perf")
    if uses(item, WORLD_PARAM) or is_perf(item):
        item.keywords[RANKS_KEYWORD] = True


def is_perf(item: pytest.Item) -> bool:
    """Whether the item is a perf test; one with a perf fixture of somebody else's is not."""
    return item.get_closest_marker("perf") is not None and not is_foreign(item, "perf")


def sort_perf_last(items: list[pytest.Item]) -> None:
    """Puts perf tests last in place, as ``arrange`` will; other plugins deselect by that order."""
    items.sort(key=lambda item: (1, *_make_process_key(item)) if is_perf_function(item) else (0,))


def arrange(
    items: list[pytest.Item],
    options: Options,
    machine: Machine,
    *,
    shared: bool = False,
    capacity: Capacity | None = None,
    on_cpus: bool = False,
    launches: int = 1,
) -> None:
    """Marks what cannot run with its reason, and puts perf tests last, by their processes, once for each launch.

    Args:
        items: what was collected; changed in place.
        options: what the user said.
        machine: what there is to run on.
        shared: whether other workers of the same run share the GPUs: then other tests go by world size too. So each
            worker starts ranks less often, and as tests beside each other are alike, workers spread evenly.
        capacity: what ranks may be put on; None for this machine alone.
        on_cpus: whether perf tests measure CPUs, too.
        launches: how often each perf test runs.
    """
    capacity = capacity or make_capacity(machine)
    for item in items:
        reason = find_skip_reason(item, capacity, unmeasured=not (on_cpus or options.smoke))
        if reason is not None and options.require_gpus:
            item.stash[LACKS] = reason
        elif reason is not None:
            item.add_marker(pytest.mark.skip(reason=reason))
    perf = [item for item in items if is_perf_function(item)]
    last = set(perf)
    rest = [item for item in items if item not in last]
    if shared and machine.gpus:
        rest.sort(key=lambda item: world_size(item) or 0)
    perf.sort(key=_make_process_key)
    measured = [item for item in perf if _runs(item)]
    skipped = [item for item in perf if not _runs(item)]
    again = repeat(measured, launches)
    for item in again:
        mark_items(item)
    items[:] = [*rest, *skipped, *again]


def sort_by_launch(items: list[pytest.Item]) -> None:
    """Puts what a recording measures last, launch after launch: what ordered it otherwise split launches in many.

    Args:
        items: what is going to run; changed in place. Within a launch, tests of the same processes keep their order.
    """
    measured = set(_select_measured(items))
    items.sort(key=lambda item: (find_launch(item).number, *_make_process_key(item)) if item in measured else (0,))


def _make_process_key(item: pytest.Item) -> tuple[int, tuple[tuple[str, str], ...], bool]:
    """What a launch's processes depend on, to be sorted by: so the launch starts them as seldom as can be.

    Tests with processes of their own come behind those that share some, which would else start again after them.
    """
    marker = find_ranks_marker(item, item.nodeid)
    size = world_size(item) or 0
    return (size, (), False) if marker is None else (size, marker.env, marker.own_processes)


def make_capacity(machine: Machine) -> Capacity:
    """What this machine alone may have ranks on."""
    return Capacity((len(machine.gpus) or os.cpu_count() or 1,), gpus=bool(machine.gpus), clustered=False)


def find_skip_reason(item: pytest.Item, capacity: Capacity, *, unmeasured: bool) -> str | None:
    """Why the item cannot run here, for example as a perf test that is not measured on CPUs; None if it can."""
    size = world_size(item)
    if size is None:
        return None
    marker = find_ranks_marker(item, item.nodeid)
    if not capacity.gpus and is_perf(item) and unmeasured:
        return (
            "perf tests measure GPUs and none are in use: pass --gpus N, --against REF to race two commits on CPUs, or "
            "--smoke to try each body unjudged"
        )
    return find_device_reason(marker, size, capacity)


def find_device_reason(marker: RanksMarker | None, size: int, capacity: Capacity) -> str | None:
    """Why a test of so many ranks cannot run on what there is; None if it can."""
    device = None if marker is None else marker.device
    if device == "cuda" and not capacity.gpus:
        return "the test needs GPUs (device='cuda') and none are in use: add --gpus N"
    nodes, per_node = (None, None) if marker is None else (marker.choose_nodes(capacity.nodes), marker.per_node)
    if marker is not None and marker.nodes == ALL and not capacity.clustered:
        return "needs the nodes of a cluster, and the run has this machine alone: pass --cluster"
    try:
        deal(size, replace(capacity, gpus=capacity.gpus and device != "cpu"), nodes=nodes, per_node=per_node)
    except NoPlaceError as error:
        return str(error)
    return None


def need_ranks(items: Sequence[pytest.Item]) -> bool:
    """Whether any test is going to run on ranks."""
    return any(RANKS_KEYWORD in item.keywords and _runs(item) for item in items)


def measures(items: Sequence[pytest.Item]) -> bool:
    """Whether any perf test is going to run."""
    return any(is_perf(item) and _runs(item) for item in items)


def list_planned(items: Sequence[pytest.Item]) -> dict[str, str]:
    """The perf tests that are going to run, by node id, with the hashes of their bodies."""
    return {find_launch(item).identity: hash_test_body(item) for item in _select_measured(items)}


def keep_bodies(items: Sequence[pytest.Item]) -> None:
    """Names the bodies of perf tests as they are before any has run, with the constants that they have now."""
    list_planned(items)


def drop_measured(items: list[pytest.Item], done: Container[tuple[str, int]]) -> list[pytest.Item]:
    """Takes out the perf tests that were measured already, by node id and launch; returns them."""
    dropped: list[pytest.Item] = [item for item in _select_measured(items) if _place(item) in done]
    measured = set(dropped)
    items[:] = [item for item in items if item not in measured]
    return dropped


def hash_test_body(item: pytest.Function) -> str:
    """The hash of the test's body; empty if its source cannot be read."""
    try:
        return hash_body(item)
    except (OSError, TypeError):  # no source to be found: the test's own failure, when it is judged
        return ""


def _place(item: pytest.Item) -> tuple[str, int]:
    launch = find_launch(item)
    return launch.identity, launch.number


def _select_measured(items: Sequence[pytest.Item]) -> list[pytest.Function]:
    return [item for item in items if is_perf_function(item) and _runs(item)]


def is_perf_function(item: pytest.Item | None) -> TypeGuard[pytest.Function]:
    """Whether the item is a perf test that can be launched again."""
    return isinstance(item, pytest.Function) and is_perf(item)


def _runs(item: pytest.Item) -> bool:
    return item.get_closest_marker("skip") is None and LACKS not in item.stash
