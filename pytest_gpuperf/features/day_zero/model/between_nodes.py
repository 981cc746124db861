"""Collectives between nodes: alpha-beta by the rate of the nodes' adapters.

The range is wide. At best, only what must leave a node does, through all of its adapters. At worst, a ring enters and
leaves each node once, through one of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pytest_gpuperf.features.day_zero.model import table
from pytest_gpuperf.features.day_zero.model.parts import Part, Unknown
from pytest_gpuperf.figures.bandwidth import BUS_FACTORS
from pytest_gpuperf.figures.work import Exchange
from pytest_gpuperf.hardware.machine import Machine
from pytest_gpuperf.hardware.network import Network

_CHOOSES = ("NCCL_IB_DISABLE", "NCCL_IB_HCA", "NCCL_NET", "NCCL_NET_PLUGIN", "NCCL_SOCKET_IFNAME")
"""Variables with which NCCL takes other adapters than the model."""
_GBIT = 1e9 / 8


@dataclass(frozen=True, slots=True)
class BetweenNodes:
    """The nodes of a run, and what is between them."""

    nodes: int
    per_node: int
    """GPUs of the node with the most."""
    network: Network | None
    through_host: bool
    """Whether GPUs of a node reach each other, and so perhaps the adapters, through the host's memory only."""
    chosen: str = ""
    """The variable that chooses other adapters; empty if none does."""

    @classmethod
    def of(cls, machine: Machine, environ: Mapping[str, str]) -> BetweenNodes:
        """Reads it of the nodes' hardware as one machine's.

        Args:
            machine: of all nodes.
            environ: of the ranks.
        """
        labels = "" if machine.linkage is None else machine.linkage.label
        direct = all(label.startswith("nv") or label in table.DIRECT for label in filter(None, labels.split("+")))
        chosen = next((name for name in _CHOOSES if environ.get(name, "") not in ("", "0")), "")
        return cls(len(machine.node_gpus), max(machine.node_gpus), machine.network, not direct, chosen)

    def predict_exchange(self, exchange: Exchange, ranks: int) -> Part:
        """The range of a collective.

        Args:
            exchange: the collective.
            ranks: how many.

        Raises:
            Unknown: it may not use the network, or a rate is unknown.
        """
        network = self._find_network()
        if ranks <= self.per_node:
            raise Unknown(f"{ranks} ranks fit on one node, so the model does not know whether they use the network")
        if exchange.op not in BUS_FACTORS:
            raise Unknown(f"nothing is known of {exchange.op!r} on {ranks} ranks")
        if exchange.op == "send_recv" and self.per_node > 1:
            raise Unknown("the model does not know which messages leave a node")
        if not network.rdma and exchange.nbytes < table.TCP_BYTES * ranks:
            raise Unknown(f"the latency of TCP through {network.name} is unknown, and it matters for so few bytes")
        assert network.one is not None
        assert network.together is not None
        shares = table.RDMA if network.rdma else table.TCP
        rate = table.MARGIN * shares * network.one * (table.THROUGH_HOST if self.through_host else 1.0)
        if not network.rdma:
            rate = min(rate, table.TCP_THREAD)
        steps = 2 * (ranks - 1) if exchange.op == "all_reduce" else ranks - 1
        latency = (table.RING_BASE + steps * table.RING_STEP["network"]) / table.MARGIN
        least, most = self._compute_crossings(exchange.op, ranks)
        component = f"network between nodes ({network.name}, {network.together / _GBIT:g} Gbit/s)"
        return Part(
            exchange.times * exchange.nbytes * least / network.together,
            exchange.times * (latency + exchange.nbytes * most / rate),
            component,
        )

    def _find_network(self) -> Network:
        if self.network is None:
            raise Unknown("no rate of the network between the nodes is known")
        if self.network.unknown:
            raise Unknown(self.network.unknown)
        if self.chosen:
            raise Unknown(f"{self.chosen} chooses the adapters, and the model does not know their rate")
        return self.network

    def _compute_crossings(self, op: str, ranks: int) -> tuple[float, float]:
        """How often the exchange's bytes leave a node, or come to it: at least, and in a ring."""
        fewest = -(-ranks // self.per_node)
        apart = (fewest - 1) / fewest  # of what all ranks have, this is on other nodes
        if op == "all_to_all":
            return apart, float(self.per_node)
        return (1.0 if op == "all_reduce" else apart), BUS_FACTORS[op](ranks)  # a switch may add up, too
