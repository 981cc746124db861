"""A rank that somebody stopped, as SIGSTOP does: in its program, before its request, in the middle of its answer."""

from __future__ import annotations

import os
import signal
import subprocess
from typing import Any

import pytest
import torch

from pytest_gpuperf.ranks import pool as pool_module
from pytest_gpuperf.ranks.context import Context
from pytest_gpuperf.ranks.failures import RankTimeout
from pytest_gpuperf.ranks.pool import Pool
from tests.ranks.conftest import Call, notes, pids
from tests.ranks.processes import survivors

LARGE = 1 << 25  # elements; 128 MiB take a while to be copied
STOPPED = "rank 1 is stopped by a signal, as by SIGSTOP (no stack could be had)"


def in_its_program(ctx: Context) -> None:
    if ctx.rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)


class StopsSoon:
    """Has the process that pickles it stopped, once it copies what else there is."""

    def __reduce__(self) -> tuple[Any, ...]:
        subprocess.Popen(["sh", "-c", f"sleep 0.05; kill -STOP {os.getpid()}"])
        return int, ()


def in_the_middle_of_its_answer(ctx: Context) -> object:
    return ([torch.empty(LARGE) for _ in range(4)], StopsSoon()) if ctx.rank == 1 else None


@pytest.mark.parametrize("program", [in_its_program, in_the_middle_of_its_answer], ids=lambda program: program.__name__)
def test_a_rank_that_is_stopped_did_not_return(pool: Pool, call: Call, program: Any) -> None:
    processes = pids(call)
    with pytest.raises(RankTimeout, match=r"^rank 1 of 2 \(gloo\) did not return from .* within 2 s") as caught:
        call(program, timeout=2)
    assert STOPPED in notes(caught.value)
    assert survivors(processes) == []


def test_a_rank_that_was_stopped_before_is_sent_what_it_does_not_read(pool: Pool, call: Call) -> None:
    processes = pids(call)
    os.kill(processes[1], signal.SIGSTOP)
    with pytest.raises(RankTimeout) as caught:
        call(lambda ctx, tensor: None, torch.ones(LARGE), timeout=2)
    assert STOPPED in notes(caught.value)
    assert survivors(processes) == []


def test_a_rank_that_is_stopped_between_tests_opens_no_group(
    pool: Pool, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_module, "GROUP_TIMEOUT", 1.0)
    processes = pids(call)
    os.kill(processes[1], signal.SIGSTOP)
    message = r"^ranks 0, 1 of 2 \(gloo\) did not return from opening the process group within 1 s; the stacks tell why"
    with pytest.raises(RankTimeout, match=message) as caught:
        pool.open_group("second", 60)
    assert STOPPED in notes(caught.value)
    assert survivors(processes) == []
