"""When ranks are held to wait for a message that nobody sends or takes, and when there is a doubt."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from pytest_gpuperf import CollectiveMismatch
from pytest_gpuperf.ranks.messages import Account, Passing
from pytest_gpuperf.ranks.unpaired import find_unpaired
from tests.ranks.conftest import Call


def receives(*peers: int, nbytes: int = 4) -> Account:
    return Account(1, passing=Passing(False, peers, nbytes))


def sends(peer: int, nbytes: int = 4) -> Account:
    return Account(1, passing=Passing(True, (peer,), nbytes))


HERE = Account(1)


@pytest.mark.parametrize(
    ("accounts", "returned", "said"),
    [
        ([HERE, receives(0)], [0], "rank 1 waits for a message from rank 0, which returned"),
        ([HERE, sends(0)], [0], "rank 1 waits for rank 0 to take a message, which returned"),
        ([HERE, receives(0, 2), HERE], [0, 2], "rank 1 waits for a message from ranks 0, 2, which returned"),
        (
            [receives(1), receives(0)],
            [],
            "rank 0 waits for a message from rank 1, and rank 1 waits in vain, too; "
            "rank 1 waits for a message from rank 0, and rank 0 waits in vain, too",
        ),
        (
            [HERE, receives(0, 2), sends(0)],
            [0],
            "rank 1 waits for a message from ranks 0, 2: rank 0 returned, and rank 2 waits in vain, too; "
            "rank 2 waits for rank 0 to take a message, which returned",
        ),
    ],
)
def test_ranks_whose_messages_never_pass(accounts: list[Account], returned: list[int], said: str) -> None:
    found = find_unpaired(dict(enumerate(accounts)), range(len(accounts)), returned)
    assert str(found) == said


@pytest.mark.parametrize(
    ("accounts", "still", "returned"),
    [
        ([HERE, receives(0)], [0, 1], []),  # the peer computes
        ([HERE, receives(0)], [1], [0]),  # it returned only now
        ([HERE, receives(0)], [0], [0]),
        ([HERE, receives(0, nbytes=2**30)], [0, 1], [0]),  # a large one may be on its way
        ([replace(HERE, threads=True), receives(0)], [0, 1], [0]),
        ([replace(HERE, children=True), receives(0)], [0, 1], [0]),
        ([HERE, replace(receives(0), threads=True)], [0, 1], [0]),
        ([sends(1), receives(0)], [0, 1], []),  # a pair
        ([receives(1), receives(2), HERE], [0, 1, 2], []),  # a chain whose last one computes
        ([HERE, HERE], [0, 1], [0]),
        ([HERE, receives()], [0, 1], [0]),  # of a group that is closed
    ],
)
def test_a_doubt_lets_the_run_go_on(accounts: list[Account], still: list[int], returned: list[int]) -> None:
    assert find_unpaired(dict(enumerate(accounts)), still, returned) is None


def in_vain(ctx: Any, way: str) -> None:
    """The first rank returns, the other one waits for it."""
    pair = dist.new_group([0, 1])
    if ctx.rank == 0:
        return
    match way:
        case "recv":
            dist.recv(torch.zeros(2), src=0)
        case "send":
            dist.send(torch.zeros(2**20), dst=0)
        case "any":
            dist.recv(torch.zeros(2))
        case _:
            dist.recv(torch.zeros(2), group=pair, group_src=0)


@pytest.mark.parametrize("way", ["recv", "send", "any", "in a group"])
def test_a_rank_in_a_message_whose_peer_returned_is_told_after_the_grace(call: Call, way: str) -> None:
    took = "for rank 0 to take a message" if way == "send" else "for a message from rank 0"
    with pytest.raises(
        CollectiveMismatch, match=f"can never end: rank 1 waits {took}, which returned. Every send needs"
    ):
        call(in_vain, way)


def late(ctx: Any) -> float:
    """The first rank sends long after the grace."""
    number = torch.full((1,), 3.0)
    if ctx.rank == 0:
        time.sleep(4)
        dist.send(number, dst=1)
    else:
        dist.recv(number.zero_(), src=0)
    return number.item()


def test_a_message_that_is_late_is_waited_for(call: Call) -> None:
    assert call(late) == [3.0, 3.0]
