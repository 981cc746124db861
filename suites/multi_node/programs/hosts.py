"""What the hosts of a cluster are accepted by: each GPU alone, hosts in pairs round by round, and all together.

Alone, every GPU multiplies matrices and copies memory, and the GPUs of a host sum over their links. In pairs, each GPU
exchanges messages with the GPU of its number on the partner's host, both ways at once, while the other pairs do so too.
All of it is checked where it lies.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.distributed as dist

from pytest_gpuperf import Context
from suites.multi_node.programs.levels import Levels
from suites.shared.bits import digest, fill_with_bits, wrong_bits
from suites.shared.delays import Delay
from suites.shared.inputs import integers
from suites.shared.places import addends, assert_sum

Rounds = Sequence[Sequence[tuple[int, int]]]
"""Pairs of nodes, by number."""
_TCP = Path("/proc/net/snmp")  # RFC 4022's tcpOutSegs and tcpRetransSegs
WARM_UP = 2  # steps, which connect the ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """How much is done in a step, and how often."""

    width: int
    """The width of the square matrices."""
    dtype: torch.dtype
    """The dtype of the matrices."""
    copied: int
    """Bytes of a copy in a GPU's memory."""
    linked: int
    """Bytes of a sum inside a host."""
    sent: int
    """Bytes that a GPU sends to its partner, and as many that it receives."""
    summed: int
    """Bytes of a sum over all."""
    samples: int
    repeats: int
    """Steps of a sample."""


@dataclass(frozen=True, slots=True)
class Drag:
    """A part that is held up, to see that it is named."""

    seconds: float
    """The delay of each step that the part takes part in."""
    node: int
    local_rank: int | None = None
    """The GPU; None for all of the node's."""
    partner: int | None = None
    """The node at the other end of a link; None if it is no link."""
    others: float = 0.0
    """Seconds that hold up everything else: what is small then scatters little on a busy machine."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What a rank has measured: seconds of a step, by sample."""

    host: str
    node: int
    local_rank: int
    product: tuple[float, ...]
    digest: int
    """The digest of the product, which is alike on all ranks."""
    copy: tuple[float, ...]
    linked: tuple[float, ...]
    """Empty if the rank is alone on its host."""
    paired: Mapping[int, tuple[float, ...]]
    """By the partner's node."""
    together: tuple[float, ...]
    resent: Mapping[int, float] = field(default_factory=dict)
    """By the partner's node: the share of TCP's segments that this host has sent again meanwhile."""


def survey(ctx: Context, *, nodes: int, rounds: Rounds, load: Load, drag: Drag | None = None) -> Seen:
    """Measures everything that is measured of a rank.

    Args:
        ctx: the rank's context.
        nodes: how many there are; on one machine, how many are to be thought of.
        rounds: which nodes meet in which round.
        load: of each measurement.
        drag: what holds up a part of the cluster; None if nothing does.

    Raises:
        AssertionError: a copy, a message or a sum is wrong; names the rank.
    """
    levels = Levels.of(ctx, nodes)
    surveyor = _Surveyor(ctx, levels, load, drag)
    product, of_product = surveyor.multiply()
    copy, linked = surveyor.copy(), surveyor.sum_inside()
    paired, resent = {}, {}
    for number, pairs in enumerate(rounds):
        partner = next((sum(pair) - levels.node for pair in pairs if levels.node in pair), None)
        sent_before, again_before = _segments()
        taken = surveyor.exchange(partner, number)
        sent, again = _segments()
        if partner is not None:
            paired[partner] = taken
            resent[partner] = (again - again_before) / max(1, sent - sent_before)
    together = surveyor.sum_together()
    return Seen(surveyor.host, levels.node, levels.place, product, of_product, copy, linked, paired, together, resent)


class _Surveyor:
    def __init__(self, ctx: Context, levels: Levels, load: Load, drag: Drag | None) -> None:
        self._ctx, self._levels, self._load, self._drag = ctx, levels, load, drag
        self.host = ctx.node_name if ctx.num_nodes == levels.nodes else f"{ctx.node_name}-{levels.node}"
        # Made by all ranks at the same time: on a GPU it measures how fast cycles go.
        self._delay = None if drag is None else Delay(ctx, drag.seconds)
        self._usual = Delay(ctx, drag.others) if drag is not None and drag.others else None

    def multiply(self) -> tuple[tuple[float, ...], int]:
        a, b = (self._matrix(seed) for seed in (1, 2))
        product = torch.empty_like(a)
        taken = self._timed(lambda: torch.mm(a, b, out=product))
        return taken, digest(product)

    def copy(self) -> tuple[float, ...]:
        source = torch.empty(self._load.copied, dtype=torch.uint8, device=self._ctx.device)
        fill_with_bits(source, stream=self._ctx.rank)
        destination = torch.zeros_like(source)
        taken = self._timed(lambda: destination.copy_(source))
        self._require(wrong_bits(destination, stream=self._ctx.rank), "bytes of a copy in its own memory")
        return taken

    def sum_inside(self) -> tuple[float, ...]:
        levels = self._levels
        if levels.each == 1:
            return ()
        return self._sum(self._load.linked, levels.inside, levels.place, levels.each, "the sum inside its node")

    def sum_together(self) -> tuple[float, ...]:
        ctx = self._ctx
        return self._sum(self._load.summed, ctx.group, ctx.rank, ctx.world_size, "the sum of all ranks")

    def exchange(self, partner: int | None, number: int) -> tuple[float, ...]:
        """Exchanges with the rank of this one's place on the partner's node; without a partner it keeps in step."""
        if partner is None:
            return self._timed(lambda: None)
        ctx, peer = self._ctx, self._levels.rank_at(partner, self._levels.place)
        source = torch.empty(self._load.sent, dtype=torch.uint8, device=ctx.device)
        fill_with_bits(source, stream=number * ctx.world_size + ctx.rank)
        destination = torch.zeros_like(source)

        def step() -> None:
            operations = [dist.P2POp(dist.isend, source, peer), dist.P2POp(dist.irecv, destination, peer)]
            for work in dist.batch_isend_irecv(operations):
                work.wait()

        taken = self._timed(step, partner)
        wrong = wrong_bits(destination, stream=number * ctx.world_size + peer)
        self._require(wrong, f"bytes from rank {peer} of node {partner}")
        return taken

    def _sum(self, nbytes: int, group: dist.ProcessGroup, place: int, ranks: int, what: str) -> tuple[float, ...]:
        dtype = torch.float32
        x = addends(nbytes // dtype.itemsize, dtype=dtype, rank=place, ranks=ranks, device=self._ctx.device)
        taken = self._timed(lambda: dist.all_reduce(x, group=group))
        assert_sum(x, ranks=ranks, steps=self._steps, where=f"{self._who}, {what}")
        return taken

    def _matrix(self, seed: int) -> torch.Tensor:
        shape = (self._load.width, self._load.width)
        return integers(shape, self._load.dtype, seed=seed, low=-7, high=7).to(self._ctx.device)

    def _require(self, wrong: int, what: str) -> None:
        assert not wrong, f"{self._who}: {wrong} {what} are wrong"

    @property
    def _who(self) -> str:
        return f"GPU {self._levels.place} of {self.host}"

    @property
    def _steps(self) -> int:
        return WARM_UP + self._load.samples * self._load.repeats

    def _timed(self, step: Callable[[], object], partner: int | None = None) -> tuple[float, ...]:
        """Seconds of a step by sample; all ranks begin each sample together."""
        ctx, repeats = self._ctx, self._load.repeats
        held_up = self._delay if self._holds_up(partner) else self._usual

        def steps(number: int) -> None:
            for _ in range(number):
                if held_up is not None:
                    held_up()
                step()

        steps(WARM_UP)
        taken = []
        for _ in range(self._load.samples):
            ctx.barrier()
            taken.append(_seconds(ctx, lambda: steps(repeats)) / repeats)
        return tuple(taken)

    def _holds_up(self, partner: int | None) -> bool:
        """Whether the drag holds up what this rank does now."""
        drag, node = self._drag, self._levels.node
        if drag is None or drag.local_rank not in (None, self._levels.place):
            return False
        if drag.partner is not None:
            return partner is not None and {drag.node, drag.partner} == {node, partner}
        return node == drag.node


def _segments() -> tuple[int, int]:
    """Segments that TCP has sent on this host, and how many it has sent again; 0 if the system does not count them."""
    try:
        names, counts = (line.split() for line in _TCP.read_text().splitlines() if line.startswith("Tcp:"))
    except OSError:
        return 0, 0
    told = dict(zip(names, counts, strict=True))
    return int(told["OutSegs"]), int(told["RetransSegs"])


def _seconds(ctx: Context, steps: Callable[[], None]) -> float:
    if ctx.device.type != "cuda":
        began = time.perf_counter()
        steps()
        return time.perf_counter() - began
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    steps()
    end.record()
    end.synchronize()
    milliseconds: float = start.elapsed_time(end)
    return milliseconds / 1e3
