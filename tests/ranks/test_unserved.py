"""When ranks are held to wait for a store that nobody opens, and when there is a doubt."""

import socket
import sys
from dataclasses import replace
from types import FrameType
from typing import Any

import pytest

from pytest_gpuperf.ranks.messages import Account
from pytest_gpuperf.ranks.unserved import find_sought_store, find_unserved

WAITS = Account(1, sought="127.0.0.1:29500")


def test_ranks_that_all_wait_for_stores() -> None:
    elsewhere = replace(WAITS, sought="127.0.0.1:29501")
    found = find_unserved({0: WAITS, 1: WAITS, 2: elsewhere}, [0, 1, 2], [0, 1, 2])
    assert str(found) == (
        "ranks 0, 1 wait for a store at 127.0.0.1:29500, where nobody listens; "
        "rank 2 waits for a store at 127.0.0.1:29501, where nobody listens"
    )


def test_a_rank_that_waits_when_the_other_has_returned() -> None:
    found = find_unserved({0: Account(1), 1: WAITS}, [0, 1], [1])
    assert str(found) == "rank 1 waits for a store at 127.0.0.1:29500, where nobody listens"


@pytest.mark.parametrize(
    ("other", "still", "waiting"),
    [
        (Account(1), [0, 1], [0, 1]),  # it may open the store yet
        (replace(WAITS, threads=True), [0, 1], [0, 1]),
        (replace(WAITS, children=True), [0, 1], [0, 1]),
        (Account(1, children=True), [0, 1], [0]),  # which it has left
        (WAITS, [0], [0, 1]),  # it has not waited for long enough
        (WAITS, [0, 1], []),
        (None, [0, 1], [0, 1]),  # it told nothing
    ],
)
def test_a_doubt_lets_the_run_go_on(other: Account | None, still: list[int], waiting: list[int]) -> None:
    accounts = {0: WAITS} if other is None else {0: WAITS, 1: other}
    assert find_unserved(accounts, still, waiting) is None


def frame_in(function: str, file: str, **variables: Any) -> FrameType:
    names: dict[str, Any] = {"sys": sys}
    source = f"def {function}({', '.join(variables)}):\n    return sys._getframe()\n"
    exec(compile(source, f"/somewhere/{file}", "exec"), names)
    frame: FrameType = names[function](**variables)
    return frame


CONNECTS, FILE = "_create_c10d_store", "torch/distributed/rendezvous.py"


def test_the_address_is_that_at_which_nobody_listens() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
        assert find_sought_store(frame_in(CONNECTS, FILE, hostname="127.0.0.1", port=port)) == f"127.0.0.1:{port}"
        bound.listen()
        assert find_sought_store(frame_in(CONNECTS, FILE, hostname="127.0.0.1", port=port)) == ""


@pytest.mark.parametrize(
    ("function", "file", "variables"),
    [
        ("another", FILE, {"hostname": "127.0.0.1", "port": 1}),
        (CONNECTS, "mine/rendezvous.py", {"hostname": "127.0.0.1", "port": 1}),
        (CONNECTS, FILE, {}),
        (CONNECTS, FILE, {"hostname": "no.such.host.invalid", "port": 1}),
        (CONNECTS, FILE, {"hostname": "127.0.0.1", "port": -1}),
    ],
)
def test_another_call_waits_for_no_store(function: str, file: str, variables: dict[str, Any]) -> None:
    assert find_sought_store(frame_in(function, file, **variables)) == ""
