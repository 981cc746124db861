"""NCCL settings for this hardware: variables that exist, each with its reason and source; often none.

NCCL finds topology, transports, algorithms and channels by itself, and tunes them for the GPUs that it knows. A
variable helps only if NCCL cannot see something. Everything else is a metric to measure first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pytest_gpuperf.features.doctor import names
from pytest_gpuperf.features.doctor.checks.variables import describe_effect, describe_origin
from pytest_gpuperf.features.doctor.facts import Facts
from pytest_gpuperf.hardware.topology import label_pairs

GUIDE = "NCCL user guide, Environment Variables"
_FAR = ("PHB", "NODE", "SYS")


@dataclass(frozen=True, slots=True)
class Suggestion:
    """One variable to set, or to unset."""

    name: str
    value: str | None
    """None: unset it."""
    reason: str
    source: str
    measure: bool = False
    """Whether it may also cost speed, so that only a measurement decides."""

    @property
    def command(self) -> str:
        """What a shell does with it."""
        return f"unset {self.name}" if self.value is None else f"export {self.name}={self.value}"


def suggest(facts: Facts) -> tuple[Suggestion, ...]:
    """The settings; empty if NCCL's own choice is the best that is known."""
    return (*_unset(facts), *_suggest_p2p_level(facts), *_suggest_network(facts))


def explain_none(facts: Facts) -> str:
    """What NCCL chooses by itself on this machine, in a sentence."""
    seen = facts.inspection
    if len(seen.gpus) < 2:
        return "NCCL has nothing to choose with fewer than two GPUs"
    words = set(label_pairs(seen).values())
    if all(word.startswith("NV") for word in words):
        through = "NVSwitch" if all(gpu.switched for gpu in seen.gpus) else "NVLink"
        return f"{through} joins all GPUs, and NCCL finds rings, trees, channels and protocols for it by itself"
    return f"NCCL finds the paths between GPUs ({', '.join(sorted(words))}) by itself"


def _unset(facts: Facts) -> Iterator[Suggestion]:
    settings = facts.settings
    for name in sorted(settings):
        where = describe_origin(facts, name)
        if name.startswith("NCCL_") and name in names.RETIRED:
            yield Suggestion(name, None, f"an old name{where}; {names.RETIRED[name]} took its place", GUIDE)
        elif name.startswith("NCCL_") and not names.exists(name):
            near = names.find_nearest(name)
            reason = f"no version of NCCL reads it{where}" + (f"; {near} may be meant" if near else "")
            yield Suggestion(name, None, reason, "NCCL 2.18 to 2.30, src/")
        elif name.startswith("NCCL_") and (effect := describe_effect(name, settings[name])):
            yield Suggestion(name, None, f"{effect}{where}", GUIDE, measure=name not in ("NCCL_P2P_DISABLE",))


def _suggest_p2p_level(facts: Facts) -> Iterator[Suggestion]:
    """Direct access across a host bridge, which NCCL does not take by itself."""
    seen = facts.inspection
    known = label_pairs(seen)
    far = [pair for pair in seen.pairs if known[pair.first, pair.second] in _FAR]
    reach = [pair for pair in far if pair.p2p.get("read") == "ok" and pair.p2p.get("write") == "ok"]
    if reach and len(reach) == len(far) and "NCCL_P2P_LEVEL" not in facts.settings:
        level = "SYS" if any(known[pair.first, pair.second] in ("NODE", "SYS") for pair in reach) else "PHB"
        yield Suggestion(
            "NCCL_P2P_LEVEL",
            level,
            f"{len(reach)} pairs of GPUs reach one another directly across the CPU's host bridge; NCCL stops at PCIe "
            "switches (PXB) and takes shared memory beyond",
            f"{GUIDE}; NCCL 2.30, src/graph/paths.cc, ncclTopoCheckP2p",
            measure=True,
        )


def _suggest_network(facts: Facts) -> Iterator[Suggestion]:
    """What several hosts need; nothing on a machine alone."""
    active = [port for port in facts.network.ports if port.state == "ACTIVE" and port.driver != "efa" and port.gbit]
    fastest = max((port.gbit or 0 for port in active), default=0)
    slow = sorted({port.device for port in active if (port.gbit or 0) < fastest / 2})
    if slow and "NCCL_IB_HCA" not in facts.settings:
        yield Suggestion(
            "NCCL_IB_HCA",
            "^=" + ",".join(slow),
            f"{', '.join(slow)}: less than half of the fastest port's {fastest:g} Gbit/s; they are for storage or "
            "management as a rule (for runs on several hosts)",
            GUIDE,
            measure=True,
        )
    physical = [one.name for one in facts.network.interfaces if one.up and one.physical]
    # Those that NCCL passes over by itself: src/misc/socket.cc, ncclFindInterfaces.
    virtual = [
        one.name
        for one in facts.network.interfaces
        if one.up and not one.physical and not one.name.startswith(("docker", "virbr", "lo"))
    ]
    if len(physical) == 1 and virtual and "NCCL_SOCKET_IFNAME" not in facts.settings:
        yield Suggestion(
            "NCCL_SOCKET_IFNAME",
            f"={physical[0]}",
            f"the one interface with a device behind it; {', '.join(virtual)}: bridges or tunnels that other "
            "hosts may not reach (for runs on several hosts)",
            GUIDE,
        )
