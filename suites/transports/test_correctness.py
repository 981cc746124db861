"""What is sent arrives, at every size and step after step, and each way gives the same."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf import Context, MiB, NcclLog, Ranks
from suites.shared import bits, places
from suites.shared.bits import random_bits
from suites.shared.comparison import assert_close, assert_unlike
from suites.shared.places import addends
from suites.shared.ring import ring
from suites.shared.step import StepOf
from suites.shared.strategies import worlds
from suites.shared.traffic import Traffic
from suites.shared.ways import IPC, NET, ONE_GPU_EACH, P2P, READ, SHM, Way, connected, over
from suites.transports import reference
from suites.transports.programs import sending

PROGRAMS: dict[str, tuple[Callable[..., StepOf], Callable[[Context, Any, int, int], None]]] = {
    "ring": (ring, reference.arrived),
    "all_reduce": (sending.all_reduce, reference.summed),
}


def in_turn(ctx: Context, name: str, sizes: list[int]) -> None:
    """Two steps of each size, each of which gives away as many bytes; compared on the ranks."""
    program, verify = PROGRAMS[name]
    step_of = program(ctx, sizes=sizes)
    for nbytes in sizes:
        step = step_of(nbytes)
        for steps in (1, 2):
            with Traffic() as traffic:
                output = step()
            assert [call.given for call in traffic.calls] == [nbytes], f"rank {ctx.rank}, a step of {nbytes} bytes"
            verify(ctx, output, steps, nbytes)


@pytest.mark.ranks(2, 3, 4)
@pytest.mark.parametrize("name", PROGRAMS)
@given(data=st.data(), counts=st.lists(st.integers(1, 70_000), min_size=1, max_size=3, unique=True))
def test_every_size(ranks: Ranks, data: st.DataObject, name: str, counts: list[int]) -> None:
    data.draw(worlds(ranks)).run(in_turn, name, [4 * count for count in [*sorted(counts), 70_001]])


def check(ranks: Ranks, way: Way) -> None:
    """The way is NCCL's, and what is sent over it arrives."""
    way.require(ranks.run(connected))
    for name in PROGRAMS:
        ranks.run(in_turn, name, [4, 4 * 70_001, 64 * MiB])


@over(P2P)
def test_p2p(ranks: Ranks) -> None:
    check(ranks, P2P)


@over(ONE_GPU_EACH)
def test_one_visible_gpu_in_each_process(ranks: Ranks) -> None:
    seen = ranks.run(lambda ctx: (torch.cuda.device_count(), ctx.device.index))
    assert seen == [(1, 0)] * ranks.world_size
    check(ranks, ONE_GPU_EACH)


@over(IPC)
def test_ipc(ranks: Ranks) -> None:
    check(ranks, IPC)


@over(READ)
def test_read(ranks: Ranks) -> None:
    check(ranks, READ)


@over(SHM)
def test_shm(ranks: Ranks) -> None:
    check(ranks, SHM)


@over(NET)
def test_net(ranks: Ranks) -> None:
    check(ranks, NET)


@pytest.mark.ranks(2, nccl_log=True, device="cpu")
def test_without_nccl_its_log_is_empty(ranks: Ranks) -> None:
    for log in ranks.run(connected):
        assert not log.connections
        assert not log.over("P2P")


def log_of(*communicators: tuple[int, int], via: str) -> NcclLog:
    """A log of communicators of so many ranks on so many nodes, connected in one way."""
    lines = ["NCCL version 2.28.9+cuda13.0"]
    lines += [
        f"comm 0x1 rank 0 nRanks {ranks} nNodes {nodes} localRanks 1 localRank 0" for ranks, nodes in communicators
    ]
    return NcclLog.of("\n".join([*lines, f"Channel 00/0 : 0[0] -> 1[0] via {via}"]))


def test_groups_of_fewer_ranks_say_nothing_of_the_nodes() -> None:
    NET.require([log_of((2, 2), (1, 1), via="NET/Socket/0")] * 2)


def test_one_rank_that_is_connected_otherwise_skips() -> None:
    other, *usual = [log_of((3, 1), via="P2P/CUMEM"), *[log_of((3, 1), via="SHM/direct/direct")] * 2]
    for place in range(3):
        logs = [*usual[:place], other, *usual[place:]]
        with pytest.raises(pytest.skip.Exception, match="NCCL has no SHM here: it connects these GPUs by P2P/CUMEM, "):
            SHM.require(logs)


def test_pieces_are_parts_of_one_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors of more than 4 million elements are made and compared piece by piece; here those of more than 8."""
    numel, of_two = 20, partial(addends, dtype=torch.float32, ranks=2)
    whole = random_bits(0, numel, stream=3, device=torch.device("cpu"))
    of_ranks = [of_two(numel, rank=rank) for rank in range(2)]
    for module in (bits, places):
        monkeypatch.setattr(module, "_CHUNK", 8)

    filled = torch.empty_like(whole)
    bits.fill_with_bits(filled, stream=3)
    assert_close(filled, whole, "bits")
    assert bits.wrong_bits(whole, stream=3) == 0
    assert bits.wrong_bits(whole.roll(8), stream=3) == numel
    assert_close(of_two(numel, rank=1), of_ranks[1], "addends")
    assert_close(of_two(numel - 5, rank=1, start=5), of_ranks[1][5:], "addends from the fifth on")
    total = of_ranks[0] + of_ranks[1]
    places.assert_sum(total, ranks=2, steps=1, where="sum")
    for place in range(numel):
        wrong, wrong_sum = whole.clone(), total.clone()
        wrong[place] ^= 1
        wrong_sum[place] += 2
        assert bits.wrong_bits(wrong, stream=3) == 1, f"element {place}"
        with pytest.raises(AssertionError, match=f"^sum, from element {place // 8 * 8} on: "):
            places.assert_sum(wrong_sum, ranks=2, steps=1, where="sum")


def test_no_two_ranks_send_or_add_the_same() -> None:
    """Were they alike, a message to the rank itself, or a sum that has one rank twice, would be right."""

    def sent(stream: int, start: int) -> torch.Tensor:
        return random_bits(start, start + 99, stream=stream, device=torch.device("cpu")).remainder(251)

    parts = [(rank, start) for rank in range(4) for start in (0, 99)]
    assert_unlike({f"rank {rank} from {start}": sent(rank, start) for rank, start in parts})
    assert_unlike(
        {
            f"rank {rank} from {start}": addends(99, dtype=torch.float32, rank=rank, ranks=4, start=start)
            for rank, start in parts
        }
    )


@pytest.mark.parametrize(
    ("way", "log", "reason"),
    [
        (NET, log_of((2, 1), via="NET/Socket/0"), r"NCCL sees \[1\] nodes here, which NET/Socket is not measured for"),
        (SHM, log_of((2, 2), via="SHM/direct/direct"), r"NCCL sees \[2\] nodes here, which SHM is not measured for"),
        (SHM, log_of((2, 1), via="P2P/CUMEM"), "NCCL has no SHM here: it connects these GPUs by P2P/CUMEM"),
    ],
)
def test_another_way_skips(way: Way, log: NcclLog, reason: str) -> None:
    with pytest.raises(pytest.skip.Exception, match=reason):
        way.require([log] * 2)
