"""The parts of a machine, in the order in which one rests on another, and which tests and findings speak for each."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_gpuperf.report.ran import Ran

NUMBERS = "numbers"
NETWORK = "network"
_SUBJECT = re.compile(r"suites/([^/]+)/")


@dataclass(frozen=True, slots=True)
class Component:
    """A part of a machine."""

    name: str
    figures: Sequence[str] = ()
    """Regular expressions of ``subject::test metric``; the first component that has a match has the metric."""
    checks: Sequence[str] = ()
    """Checks of the doctor that explain why it is slow."""
    decisive: Sequence[str] = ()
    """The checks among ``checks`` whose warning alone says that the component is slow."""


MACHINE = (
    Component(
        "matrix units, power, clocks",
        (r"health::",),
        (
            "foreign processes",
            "foreign load",
            "foreign memory",
            "throttling",
            "clocks",
            "power limit",
            "temperature",
            "persistence",
            "mig",
            "xid",
            "gpu kinds",
            "gpu count",
            "gpu answers",
            "gpu recovery",
            "compute mode",
            "vbios",
            "driver",
            "driver version",
            "nouveau",
            "torch",
            "cuda architecture",
        ),
        ("foreign load",),
    ),
    Component(
        "GPU memory",
        (
            r"memory_hierarchy::test_cache_and_memory",
            r"memory_hierarchy::test_tiers\S* (copied|read|written|triad)$",
            r"symmetric_memory::test_latency_of_loads\S* own$",
        ),
        ("memory errors", "row remapping", "ecc"),
    ),
    Component(
        "host",
        (
            r"host::",
            r"checkpoint::",
            r"symmetric_memory::test_latency_of_loads\S* host$",
            r"memory_hierarchy::.* host$",
        ),
        (
            "cores",
            "affinity",
            "governor",
            "numa balancing",
            "host memory",
            "shared memory",
            "open files",
            "memlock",
            "iommu",
        ),
        ("cores",),
    ),
    Component(
        "PCIe",
        (r"memory_hierarchy::test_p", r"memory_hierarchy::test_tiers\S* (to_gpu|from_gpu|both_ways)"),
        ("pcie traffic", "pcie generation", "pcie width", "pcie replays"),
        ("pcie traffic",),
    ),
    Component(
        "links between GPUs",
        (r"nvlink::", r"memory_hierarchy::test_tiers\S* to_peer$", r"symmetric_memory::"),
        ("nvlink", "nvlink errors", "fabric", "p2p"),
    ),
    Component(
        "collectives",
        (r"collectives::", r"transports::", r"communicators::"),
        ("variables", "variable names", "library versions", "libraries twice", "host identity", "pod placement"),
    ),
    Component(
        NETWORK,
        (r"network::", r"multi_node::"),
        ("rdma", "rdma ports", "rdma rates", "rdma errors", "gpudirect rdma", "interfaces", "efa plugin"),
    ),
)
"""What slows one of them may slow all that come after it: the first slow one is named first."""


def find_subject(test: str) -> str:
    """Return the folder of a test's suite; the test itself if it is in none."""
    found = _SUBJECT.search(test)
    return test if found is None else found.group(1)


def find_component(test: str, metric: str = "") -> str:
    """Return the component that a metric speaks for, or a test without one; a step's subject if it is none's."""
    subject = find_subject(test)
    told = f"{subject}::{test.rpartition('::')[2]} {metric}"
    for component in MACHINE:
        if any(re.match(pattern, told) for pattern in component.figures):
            return component.name
    return "GPU memory" if subject == "memory_hierarchy" else subject.replace("_", " ")


def explain(name: str) -> Component:
    """Return the component of this name; one that no finding explains if it is a step."""
    return next((component for component in MACHINE if component.name == name), Component(name))


def is_number(ran: Ran) -> bool:
    """Whether a test is one of correctness, which speaks for the numbers."""
    return not ran.test.partition("::")[0].endswith("test_performance.py")


def is_soak(ran: Ran) -> bool:
    """Whether a test looks for silent corruption."""
    return ran.test.partition("::")[0].endswith("test_soak.py")
