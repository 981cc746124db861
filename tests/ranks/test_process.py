"""What a rank's process has printed, what that tells of its end, and how processes are ended."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator
from contextlib import closing
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from pytest_gpuperf.ranks import process as process_module
from pytest_gpuperf.ranks.channel import Channel, Letter
from pytest_gpuperf.ranks.process import EXIT_TIMEOUT, RankProcess, kill
from pytest_gpuperf.ranks.stacks import NO_STACK

TERMINATED = """terminate called after throwing an instance of 'c10::AcceleratorError'
  what():  CUDA error: assert
second line
"""
CRASHED = """Fatal Python error: Segmentation fault

Thread 0x0000000000000009 (most recent call first):
  File "helper.py", line 3 in wait

Current thread 0x0000000000000007 (most recent call first):
  File "suite.py", line 7 in program
  File "/x/pytest_gpuperf/ranks/rank.py", line 5 in main

Extension modules: numpy (total: 1)
"""


@pytest.fixture
def process() -> Iterator[RankProcess]:
    (ours, theirs), (asking, asked) = Channel.pair(), Channel.pair()
    stdout, stderr, dumps = (tempfile.TemporaryFile() for _ in range(3))  # noqa: SIM115  # the process closes them
    made = RankProcess(0, ours, asking, stdout, stderr, dumps, main_thread=7)
    with closing(theirs), closing(asked):
        yield made
    made.close()


def printed(process: RankProcess, text: str | bytes) -> RankProcess:
    process.stderr.write(text.encode() if isinstance(text, str) else text)
    process.stderr.flush()
    return process


def test_the_exception_that_ended_it_is_told_by_its_first_line(process: RankProcess) -> None:
    printed(process, "before\n" + TERMINATED + CRASHED)
    assert process.last_words() == "CUDA error: assert"
    assert str(process.read_printed("stderr")).startswith("before")  # what is shown to the user is all of it
    assert process.last_words() == "CUDA error: assert"


def test_half_a_character_is_told_once_the_rest_is_there(process: RankProcess) -> None:
    printed(process, b"caf\xc3")
    assert list(process.read_printed_whole("stderr")) == ["caf"]
    assert list(process.read_printed_whole("stderr")) == []
    printed(process, b"\xa9\n")
    assert list(process.read_printed_whole("stderr")) == ["é\n"]
    printed(process, b"\xff\n")
    assert list(process.read_printed_whole("stderr")) == ["\N{REPLACEMENT CHARACTER}\n"]


def test_a_long_output_is_read_in_pieces(process: RankProcess) -> None:
    printed(process, "x" * 3_000_000)
    pieces = list(process.read_printed_whole("stderr"))
    assert len(pieces) == 3
    assert "".join(pieces) == "x" * 3_000_000


def test_of_several_the_last_one_ended_it(process: RankProcess) -> None:
    printed(process, TERMINATED.replace("assert", "of a child") + CRASHED.replace("suite.py", "child.py"))
    printed(process, TERMINATED + CRASHED)
    assert process.last_words() == "CUDA error: assert"
    assert "child.py" not in process.read_last_stack()


def test_two_threads_may_end_it_at_once(process: RankProcess) -> None:
    first, last = TERMINATED.split("\n", 1)
    printed(process, f"{first}\nterminate called recursively\n[rank1] a line\n{last}")
    assert process.last_words() == "CUDA error: assert"


def test_the_watchdogs_words_count_if_no_exception_was_printed(process: RankProcess) -> None:
    printed(process, "[rank1]:[E1] Process group watchdog thread terminated with exception: CUDA error: assert\nmore\n")
    assert process.last_words() == "CUDA error: assert"


@pytest.mark.parametrize(
    "text", ["", "what():  nothing\n", "terminate called without an active exception\n", b"\xff\xfe"]
)
def test_without_an_exception_there_are_no_words(process: RankProcess, text: str | bytes) -> None:
    printed(process, text)
    assert process.last_words() == ""
    assert process.read_last_stack() == ""


def test_the_stack_at_a_fatal_signal_begins_with_the_main_threads(process: RankProcess) -> None:
    assert printed(process, CRASHED).read_last_stack().splitlines()[0] == '  File "suite.py", line 7 in program'
    assert "rank.py" not in process.read_last_stack()


def test_a_signal_without_a_stack_says_so(process: RankProcess) -> None:
    assert printed(process, "Fatal Python error: Aborted\n").read_last_stack() == NO_STACK


def test_only_the_end_of_a_long_output_is_read(process: RankProcess) -> None:
    printed(process, TERMINATED + CRASHED + "x" * (1 << 20) + "\n")
    assert (process.last_words(), process.read_last_stack()) == ("", "")
    printed(process, TERMINATED + CRASHED)
    assert process.last_words() == "CUDA error: assert"


def test_what_an_earlier_run_printed_is_not_of_this_one(process: RankProcess) -> None:
    printed(process, TERMINATED + CRASHED)
    process.send(Letter("the next request"))
    assert (process.last_words(), process.read_last_stack()) == ("", "")
    printed(process, TERMINATED.replace("assert", "another") + CRASHED)
    process.connection.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        process.send(Letter("one that does not reach it"))
    assert process.last_words() == "CUDA error: another"


def test_the_exception_may_begin_in_the_middle_of_a_line(process: RankProcess) -> None:
    assert printed(process, "progress 50 %" + TERMINATED).last_words() == "CUDA error: assert"


def test_an_exception_that_says_nothing_has_no_words(process: RankProcess) -> None:
    assert printed(process, TERMINATED.replace("CUDA error: assert", "")).last_words() == ""


def test_words_are_cut_and_print_nothing_odd(process: RankProcess) -> None:
    printed(process, TERMINATED.replace("assert", "\x1b[31m\0" + "x" * 1000))
    assert process.last_words() == "CUDA error:  [31m " + "x" * (500 - 18)


def test_processes_whose_ends_nobody_tells_are_waited_for_together(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    waited: list[float] = []

    def await_end(pid: int, timeout: float) -> None:
        nonlocal now
        now += timeout
        waited.append(timeout)

    monkeypatch.setattr(process_module, "time", SimpleNamespace(monotonic=lambda: now))
    killpg = mock.Mock()
    monkeypatch.setattr(os, "killpg", killpg)
    client: Any = SimpleNamespace(exit_code=lambda pid, timeout: None, await_end=await_end)
    processes: Any = [SimpleNamespace(pid=pid) for pid in (1, 2, 3)]
    kill(client, processes)
    assert sum(waited) == EXIT_TIMEOUT
    assert killpg.mock_calls == [mock.call(pid, signal.SIGKILL) for pid in (1, 2, 3)]
