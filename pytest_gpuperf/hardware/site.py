"""The site of ranks, as a record keeps it beside metrics: a machine, or the nodes of a cluster with facts of each."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field

from pytest_gpuperf.hardware.machine import Machine
from pytest_gpuperf.hardware.setup import read_host_setup


@dataclass(frozen=True, slots=True)
class Site:
    """A machine, or all nodes of a cluster."""

    host: str
    """The machine's name; of a cluster, the names of its nodes."""
    gpus: str
    """Tells the GPUs from others of their kind, as ``Machine.identity``."""
    setup: Mapping[str, str]
    """Versions and settings by name; where nodes differ, each value once, in the order of the nodes."""
    nodes: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """The facts of each node of a cluster by its name; empty without a cluster."""


def make_site(machine: Machine, *, binds: bool | None = None) -> Site:
    """This machine, with the GPUs of the run.

    Args:
        machine: with these GPUs.
        binds: whether ranks may be bound to the cores of their GPU's NUMA node; None if that says nothing of them.
    """
    placement = {} if binds is None else machine.placement(frozenset(os.sched_getaffinity(0)), binds=binds)
    setup = {**machine.software, **machine.setup, **read_host_setup(), **placement}
    return Site(platform.node(), machine.identity, setup)


def join_site(sites: Mapping[str, Site], gpus: str) -> Site:
    """The nodes of a cluster as one site.

    Args:
        sites: of the nodes, by the names that reports give them.
        gpus: the identity of all GPUs together.
    """
    setup: dict[str, str] = {}
    for name in sorted({name for site in sites.values() for name in site.setup}):
        told = [site.setup[name] for site in sites.values() if name in site.setup]
        if len(told) == len(sites):  # what a node does not tell is unknown of all
            setup[name] = ", ".join(dict.fromkeys(told))
    nodes = {name: {"host": site.host, "gpus": site.gpus, **site.setup} for name, site in sites.items()}
    return Site(", ".join(sites), gpus, setup, nodes)
