"""None outlives whom it serves: ranks, what they started, their forkserver, and whoever owns it."""

import os
import signal
import time
from pathlib import Path
from unittest import mock

import pytest

from pytest_gpuperf.ranks.failures import LaunchError
from pytest_gpuperf.ranks.forkserver_client import ForkserverClient
from pytest_gpuperf.ranks.local_ranks import LocalNode
from pytest_gpuperf.ranks.pool import Pool
from pytest_gpuperf.ranks.process import RankProcess, kill
from pytest_gpuperf.ranks.spec import PoolSpec
from tests.ranks.forked_rank import ENVIRON, PRELOAD, WAIT, Rank
from tests.ranks.processes import DEADLINE, owner_of, survivors

CHILD = "import subprocess, sys; c = subprocess.Popen(['sleep', '600']); connection.send(c.pid); "


def test_what_a_rank_started_ends_with_it(client: ForkserverClient) -> None:
    rank = Rank(client, CHILD)
    assert survivors([rank.received()]) == []
    rank.close()


def test_closing_ends_the_forkserver_and_every_rank(own_client: ForkserverClient) -> None:
    ranks = [
        Rank(own_client, CHILD + WAIT),
        Rank(own_client, "import signal; signal.signal(15, lambda *a: 0);" + WAIT),
    ]
    child = ranks[0].received()
    own_client.close()
    assert survivors([child, *(rank.pid for rank in ranks)]) == []
    own_client.close()  # again, and nothing happens
    for rank in ranks:
        rank.close()


def test_ranks_die_with_the_forkserver_and_the_next_one_is_new(own_client: ForkserverClient) -> None:
    ranks = [Rank(own_client, "import os; connection.send(os.getppid()); " + WAIT) for _ in range(2)]
    server = ranks[0].received()
    os.kill(server, signal.SIGKILL)
    assert survivors([rank.pid for rank in ranks]) == []
    assert own_client.exit_code(ranks[0].pid, DEADLINE) is None
    again = Rank(own_client, "import os; connection.send(os.getppid())")
    assert again.received() != server
    for rank in [*ranks, again]:
        rank.close()


def test_nobody_waits_for_ranks_of_a_forkserver_that_is_gone(
    own_client: ForkserverClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Rank(own_client, "import os; connection.send(os.getppid()); " + WAIT)
    os.kill(first.received(), signal.SIGKILL)
    assert survivors([first.pid]) == []
    with pytest.raises(LaunchError):
        Rank(own_client, WAIT)
    second = Rank(own_client, WAIT)  # of another one, which knows nothing of the first
    receive = mock.Mock(side_effect=own_client._receive)
    monkeypatch.setattr(own_client, "_receive", receive)
    assert own_client.exit_code(first.pid, DEADLINE) is None
    assert receive.call_count == 0
    assert own_client.exit_code(second.pid, 0) is None
    assert receive.call_count == 1
    for rank in (first, second):
        rank.close()


def test_a_forkserver_that_is_gone_is_a_launch_error(own_client: ForkserverClient) -> None:
    rank = Rank(own_client, "import os; connection.send(os.getppid()); " + WAIT)
    server = rank.received()
    os.kill(server, signal.SIGKILL)
    assert survivors([server, rank.pid]) == []
    with pytest.raises(
        LaunchError, match=r"^the forkserver that starts ranks ended unexpectedly; it printed: nothing$"
    ):
        Rank(own_client, WAIT)
    rank.close()


OWNER = """
import sys
from tests.ranks.forked_rank import PRELOAD, WAIT, Rank
from pytest_gpuperf.ranks.forkserver_client import ForkserverClient
client = ForkserverClient(PRELOAD)
source = "import os, signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); connection.send(os.getppid()); "
ranks = [Rank(client, source + WAIT) for _ in range(3)]
print(*(rank.pid for rank in ranks), ranks[0].received(), flush=True)
sys.stdin.read()
"""


def test_ranks_and_forkserver_die_with_a_killed_owner() -> None:
    with owner_of(OWNER) as (owner, pids):
        assert len(pids) == 4
        owner.kill()
        assert survivors(pids) == []


def stopped_forkserver_of(rank: Rank) -> int:
    server = int(rank.received())
    os.kill(server, signal.SIGSTOP)
    return server


TELLS_ITS_SERVER = "import os; connection.send(os.getppid()); "


def test_a_forkserver_that_was_stopped_goes_on_to_tell_how_ranks_ended_and_to_fork(
    own_client: ForkserverClient,
) -> None:
    first = Rank(own_client, TELLS_ITS_SERVER + WAIT)
    server = stopped_forkserver_of(first)
    os.kill(first.pid, signal.SIGKILL)
    assert own_client.exit_code(first.pid, DEADLINE) == -signal.SIGKILL
    os.kill(server, signal.SIGSTOP)
    second = Rank(own_client, TELLS_ITS_SERVER)
    assert second.received() == server
    for rank in (first, second):
        rank.close()


def test_a_forkserver_that_was_stopped_ends_what_ranks_started_before_it_goes(own_client: ForkserverClient) -> None:
    rank = Rank(own_client, TELLS_ITS_SERVER + CHILD + WAIT)
    stopped_forkserver_of(rank)
    child = rank.received()
    own_client.close()
    assert survivors([rank.pid, child]) == []
    rank.close()


def test_a_forkserver_that_was_stopped_dies_with_a_killed_owner() -> None:
    with owner_of(OWNER) as (owner, pids):
        assert len(pids) == 4
        os.kill(pids[-1], signal.SIGSTOP)
        owner.kill()
        try:
            assert survivors(pids) == []
        finally:
            for pid in survivors(pids, within=0):
                os.kill(pid, signal.SIGKILL)


@pytest.fixture
def long_wait(monkeypatch: pytest.MonkeyPatch) -> float:
    """Makes a wait for an end that nobody reports last a minute; returns half of it, in which a busy host does all."""
    monkeypatch.setattr("pytest_gpuperf.ranks.process.EXIT_TIMEOUT", 60.0)
    return 30.0


NO_GROUP_YET = "import os, time; os.setsid = lambda: time.sleep(60)"


@pytest.mark.parametrize("what", [NO_GROUP_YET, ""], ids=["no group yet", "leads a group"])
def test_a_rank_is_ended_at_once_however_far_it_has_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, long_wait: float, what: str
) -> None:
    (tmp_path / "slow_to_start.py").write_text(what)
    monkeypatch.syspath_prepend(tmp_path)
    client = ForkserverClient(("slow_to_start", *PRELOAD))
    try:
        process = RankProcess.fork(client, ENVIRON)
        start = time.monotonic()
        kill(client, [process])
        assert time.monotonic() - start < long_wait
        assert survivors([process.pid], within=0.0) == []
        process.close()
    finally:
        client.close()


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def test_nobody_waits_for_a_forkserver_that_imports_to_tell_that_ranks_have_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, long_wait: float
) -> None:
    (tmp_path / "slow_to_import.py").write_text("import time\ntime.sleep(60)")
    monkeypatch.syspath_prepend(tmp_path)
    client = ForkserverClient(PRELOAD, {"wanted_in_the_middle": "slow_to_import"})
    pool = Pool(LocalNode(client), PoolSpec(2), {})
    pids = pool.pids
    client.note_used(["wanted_in_the_middle"])
    signal.signal(signal.SIGALRM, _interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.5)
        with pytest.raises(KeyboardInterrupt):
            Pool(LocalNode(client), PoolSpec(2), {})  # whose first rank is forked once the import is over
        start = time.monotonic()
        pool.close()
        client.close()
        assert time.monotonic() - start < long_wait
        assert survivors(pids) == []
    finally:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        client.close()
