"""How a pool's ranks come up, and how they go: at the latest with their owner."""

import os
import signal
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from pytest_gpuperf import Context, RankDied
from pytest_gpuperf.ranks import local_ranks
from pytest_gpuperf.ranks import rank as rank_module
from pytest_gpuperf.ranks.channel import EMPTY
from pytest_gpuperf.ranks.failures import LaunchError
from pytest_gpuperf.ranks.forkserver_client import ForkserverClient
from pytest_gpuperf.ranks.local_ranks import LocalNode
from pytest_gpuperf.ranks.pool import Pool
from pytest_gpuperf.ranks.process import RankProcess
from pytest_gpuperf.ranks.spec import PoolSpec
from tests.ranks.conftest import Call
from tests.ranks.processes import DEADLINE, open_files, owner_of, survivors


def test_a_rank_that_cannot_start_says_why(torch_client: ForkserverClient) -> None:
    if torch.cuda.is_available():
        pytest.skip("the GPU of no other machine would do here")
    with pytest.raises(LaunchError) as caught:
        Pool(LocalNode(torch_client), PoolSpec(1, ("GPU-not-there",)), {})
    assert str(caught.value).startswith("rank 0 of 1 (nccl) ended while it started; it printed: Traceback")
    assert "CUDA" in str(caught.value)


@pytest.mark.parametrize(
    ("source", "timeout", "message"),
    [
        ("connection.receive()", 0.1, "did not start within 0.1 s; it printed: nothing"),
        ("import sys; print('no memory', file=sys.stderr)", 60.0, "ended while it started; it printed: no memory"),
    ],
)
def test_ranks_that_do_not_come_up_are_a_launch_error_and_are_ended(
    monkeypatch: pytest.MonkeyPatch, source: str, timeout: float, message: str
) -> None:
    monkeypatch.setattr(local_ranks, "Start", lambda *args: source)  # a light rank does what it is sent
    monkeypatch.setattr(local_ranks, "START_TIMEOUT", timeout)
    client = ForkserverClient(("tests.ranks.light_rank",))
    before = open_files()
    try:
        with pytest.raises(LaunchError) as caught:
            Pool(LocalNode(client), PoolSpec(2), {})
        assert str(caught.value) == f"rank 0 of 2 (gloo) {message}"
    finally:
        client.close()
    assert open_files() == before


def test_a_rank_that_ended_before_it_was_told_anything_is_a_launch_error_too(monkeypatch: pytest.MonkeyPatch) -> None:
    forked = RankProcess.fork

    def ends_at_once(client: ForkserverClient, environ: Mapping[str, str]) -> RankProcess:
        process = forked(client, environ)
        os.kill(process.pid, signal.SIGKILL)
        assert client.exit_code(process.pid, DEADLINE) == -signal.SIGKILL
        return process

    monkeypatch.setattr(RankProcess, "fork", ends_at_once)
    client = ForkserverClient(("tests.ranks.light_rank",))
    try:
        with pytest.raises(LaunchError) as caught:
            Pool(LocalNode(client), PoolSpec(2), {})
        assert str(caught.value) == "rank 0 of 2 (gloo) ended while it started; it printed: nothing"
    finally:
        client.close()


def test_a_rank_that_cannot_be_forked_leaves_no_file_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "breaks_on_import.py").write_text("raise ValueError('no such driver')")
    monkeypatch.syspath_prepend(tmp_path)
    before = open_files()
    with pytest.raises(LaunchError, match="no such driver") as caught:
        Pool(LocalNode(ForkserverClient(("breaks_on_import",))), PoolSpec(1), {})
    assert open_files() == before, caught  # whose frames still hold what was made


def test_a_request_that_no_rank_understands_is_refused() -> None:
    with pytest.raises(TypeError, match=r"^a rank was sent 'hello', which no rank understands$"):
        rank_module._Rank.answer(cast(Any, None), cast(Any, "hello"), EMPTY)


def test_a_rank_that_ignores_every_polite_signal_is_ended_all_the_same(pool: Pool, call: Call) -> None:
    def program(ctx: Context) -> int:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        threading.Thread(target=threading.Event().wait).start()  # its interpreter does not come to its end
        return os.getpid()

    processes = call(program)
    pool.close()
    assert survivors(processes) == []


def test_ranks_die_with_the_forkserver_and_the_run_says_that_they_died() -> None:
    client = ForkserverClient(("tests.ranks.light_rank",))
    pool = Pool(LocalNode(client), PoolSpec(2), {})
    try:
        processes = [int(answer.stream) for answer in pool.run(EMPTY, program="p", seed=0, timeout=60)]
        server = int(Path(f"/proc/{processes[0]}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(server, signal.SIGKILL)
        assert survivors(processes) == []
        with pytest.raises(RankDied, match=r"in p died, and its exit code was not reported"):
            pool.run(EMPTY, program="p", seed=0, timeout=60)
        assert not pool.alive
    finally:
        pool.close()
        client.close()


OWNER = """
import sys
from pytest_gpuperf.ranks.channel import EMPTY
from pytest_gpuperf.ranks.forkserver_client import ForkserverClient
from pytest_gpuperf.ranks.local_ranks import LocalNode
from pytest_gpuperf.ranks.pool import Pool
from pytest_gpuperf.ranks.spec import PoolSpec
pool = Pool(LocalNode(ForkserverClient(("tests.ranks.light_rank",))), PoolSpec(3), {})
print(*(pid.stream.decode() for pid in pool.run(EMPTY, program="p", seed=0, timeout=60)), flush=True)
sys.stdin.read()
"""


def test_ranks_die_with_a_killed_owner() -> None:
    with owner_of(OWNER) as (owner, processes):
        assert len(processes) == 3
        owner.kill()
        assert survivors(processes) == []
