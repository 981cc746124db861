"""What another user writes into the folder of leases: it reaches no terminal as a command, and no message at length."""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pytest_gpuperf.leases.folder import LeaseError
from pytest_gpuperf.leases.leases import Leases

A, B = "GPU-a", "GPU-b"
ODD = ["\x1b[31mred", "\n::error::no", "##[error]no", "\u202egnp", "x" * 60_000, "\r", "\x9b2J", "\u2028", "\ud800"]
HONEST = {"pid": 7, "user": "me", "host": "here", "holder": "test", "since": 1.0}
RUNNING = {"run": "a run", "resources": [A], "running": [A]}
LONGEST = 2000  # characters of a message


@contextmanager
def held(folder: Path, name: str, line: dict[str, Any]) -> Iterator[None]:
    """A file as a living process of another user holds it."""
    folder.mkdir(exist_ok=True)
    with open(folder / name, "wb") as file:
        file.write(json.dumps(line).encode() + b"\n")
        file.flush()
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def message(leases: Leases) -> str:
    with pytest.raises(LeaseError) as caught:
        leases.acquire([A, B], 2, holder="mine", timeout=0.0).release()
    return str(caught.value)


def assert_harmless(text: str) -> None:
    assert text.isprintable()
    assert "##[" not in text
    assert len(text) < LONGEST


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("field", ["user", "host", "holder"])
@pytest.mark.parametrize("kind", ["lock", "waiting", "staying"])
def test_who_holds_or_waits_or_stays_is_told_without_its_commands(
    folder: Path, leases: Leases, kind: str, field: str, odd: str
) -> None:
    name = {"lock": f"{A}.lock", "waiting": "00000000000000000001-7-x.waiting", "staying": "7-x.staying"}[kind]
    rest: dict[str, Any] = {"lock": {}, "waiting": {"candidates": [A], "count": 1}, "staying": RUNNING}
    with held(folder, name, {**HONEST, **rest[kind], field: odd}):
        text = message(leases)
    assert "pid 7 of" in text
    assert_harmless(text)


@pytest.mark.parametrize("odd", [*ODD[:4], "x" * 101, "", "..", 7, None])
def test_a_ticket_for_what_can_be_no_resource_keeps_nobody_waiting(folder: Path, leases: Leases, odd: object) -> None:
    with held(folder, "00000000000000000001-7-x.waiting", {**HONEST, "candidates": [A, odd], "count": 1}):
        leases.acquire([A], 1, holder="mine", timeout=0.0).release()
        assert not leases.is_wanted_alone([A])


@pytest.mark.parametrize(
    "change",
    [*({"resources": [A, odd]} for odd in [*ODD[:4], "x" * 101, 7]), {"running": [B]}, {"running": 7}, {"run": 7}],
)
def test_who_says_to_stay_on_what_can_be_no_resource_is_in_nobodys_way(
    folder: Path, leases: Leases, change: dict[str, Any]
) -> None:
    with held(folder, "7-x.staying", {**HONEST, **RUNNING, **change}):
        leases.acquire([A], 1, holder="mine", timeout=0.0).release()


@pytest.mark.parametrize("change", [{"count": 10**4000}, {"count": 0}, {"count": 3}, {"pid": 10**4000}, {"pid": -1}])
def test_a_ticket_with_numbers_that_cannot_be_keeps_nobody_waiting(
    folder: Path, leases: Leases, change: dict[str, int]
) -> None:
    with held(folder, "00000000000000000001-7-x.waiting", {**HONEST, "candidates": [A, B], "count": 1, **change}):
        leases.acquire([A], 1, holder="mine", timeout=0.0).release()


def test_an_honest_ticket_is_told_as_ever(folder: Path, leases: Leases) -> None:
    line = {**HONEST, "candidates": [B, A], "count": 2, "since": 9e11}
    with held(folder, "00000000000000000001-7-x.waiting", line):
        assert "; 2 of GPU-a, GPU-b to go first to pid 7 of 'me' on 'here', 'test', for 0 s: allow" in message(leases)


def test_a_file_name_in_an_error_is_harmless_too(folder: Path, leases: Leases) -> None:
    folder.mkdir()
    name = "\x1b[31m##[error].waiting"
    (folder / name).write_text("")
    os.chmod(folder / name, 0)
    before = leases._folder._open

    def refused(name: str, access: int) -> Any:
        raise OSError(5, "Input/output error", str(folder / name))

    leases._folder._open = refused  # type: ignore[method-assign]
    try:
        with pytest.raises(LeaseError) as caught:
            leases.is_wanted_alone([A])
    finally:
        leases._folder._open = before  # type: ignore[method-assign]
    assert_harmless(str(caught.value))
