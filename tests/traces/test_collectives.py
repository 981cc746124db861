"""Which events of several ranks are one collective."""

from typing import Any

from pytest_gpuperf.traces.collectives import Collectives
from pytest_gpuperf.traces.events import RankEvents
from pytest_gpuperf.traces.rank_trace import Issued
from tests.traces.kineto import NCCL, Event, events, gloo_step, kernel, nccl_args, x


def tied(*ranks: RankEvents, issued: tuple[tuple[Issued, ...], ...] = ()) -> list[list[tuple[int, str]]]:
    """Rank and name of each part of each collective."""
    collectives = Collectives()
    for number, of_rank in enumerate(ranks):
        collectives.add(of_rank, issued[number] if issued else ())
    return [[(part.rank, part.slice.name) for part in parts] for parts in collectives.tie()]


def nccl(name: str, at: float, **args: object) -> Event:
    return kernel(name, at, 5.0, int(at), NCCL, **args)


def test_the_kth_kernel_of_a_group_is_one_collective_whichever_rank_is_first() -> None:
    early = events(nccl("first", 0.0, **nccl_args()), nccl("second", 100.0, **nccl_args()))
    late = events(nccl("first", 50.0, **nccl_args()), nccl("second", 90.0, **nccl_args()), rank=1)
    assert tied(early, late) == [[(0, "first"), (1, "first")], [(1, "second"), (0, "second")]]


def test_groups_are_counted_apart() -> None:
    pairs = {0: "[0, 1]", 1: "[0, 1]", 2: "[2, 3]", 3: "[2, 3]"}
    ranks = [
        events(
            nccl(f"pair {pairs[rank]}", 10.0 + rank, **nccl_args(ranks=pairs[rank], group="7")),
            nccl("all", 20.0 + rank, **nccl_args(ranks="[0, 1, 2, 3]")),
            rank=rank,
        )
        for rank in range(4)
    ]
    assert tied(*ranks) == [
        [(0, "pair [0, 1]"), (1, "pair [0, 1]")],
        [(2, "pair [2, 3]"), (3, "pair [2, 3]")],
        [(rank, "all") for rank in range(4)],
    ]


def test_a_send_is_tied_to_its_receive_and_counts_as_no_collective() -> None:
    ends: dict[str, Any] = {"Src Rank": 0, "Dst Rank": 1}
    sender = events(nccl("send", 0.0, **nccl_args("send", **ends)), nccl("reduce", 10.0, **nccl_args()))
    receiver = events(nccl("recv", 1.0, **nccl_args("recv", **ends)), nccl("reduce", 11.0, **nccl_args()), rank=1)
    bystander = events(nccl("reduce", 12.0, **nccl_args()), rank=2)
    assert tied(sender, receiver, bystander) == [
        [(0, "send"), (1, "recv")],
        [(0, "reduce"), (1, "reduce"), (2, "reduce")],
    ]


def test_a_send_whose_other_end_nobody_names_is_tied_to_nothing() -> None:
    assert tied(*(events(nccl("send", 0.0, **nccl_args("send")), rank=rank) for rank in (0, 1))) == []


def test_kernels_that_name_no_collective_are_tied_to_nothing() -> None:
    assert tied(*(events(nccl("ncclDevKernel_AllReduce", 0.0), rank=rank) for rank in (0, 1))) == []


def test_gloos_events_get_their_groups_from_what_was_issued() -> None:
    barrier = x("user_annotation", "gloo:barrier", 200.0, 1.0, tid=4801)
    ranks = [events(*gloo_step(rank), barrier, device="cpu", rank=rank) for rank in (0, 1)]
    issued = (Issued("gloo:barrier", "0", 8), Issued("gloo:all_reduce", "0", 7))
    assert tied(*ranks, issued=(issued, issued)) == [
        [(0, "gloo:all_reduce"), (1, "gloo:all_reduce")],
        [(0, "gloo:barrier"), (1, "gloo:barrier")],
    ]
    other = (Issued("gloo:barrier", "0", 8), Issued("gloo:all_reduce", "another group", 7))
    assert tied(*ranks, issued=(issued, other)) == [[(0, "gloo:barrier"), (1, "gloo:barrier")]]


def test_gloos_events_are_not_tied_when_entries_of_their_name_are_lost() -> None:
    ranks = [events(*gloo_step(0.0), *gloo_step(1000.0, 2), device="cpu", rank=rank) for rank in (0, 1)]
    issued = (Issued("gloo:all_reduce", "0", 8),)
    assert tied(*ranks, issued=(issued, issued)) == []
