"""Threads of ranks on gloo that measure nothing wait for their turn, unless somebody chose how they are scheduled."""

import errno
import os
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist

from pytest_gpuperf import Context
from pytest_gpuperf.ranks import payload, scheduling
from pytest_gpuperf.ranks.forkserver_client import ForkserverClient
from pytest_gpuperf.ranks.local_ranks import LocalNode
from pytest_gpuperf.ranks.pool import Pool
from pytest_gpuperf.ranks.spec import PoolSpec
from tests.ranks.conftest import Call

POLICY = (
    "import os; from pytest_gpuperf.ranks import scheduling; "
    "os.sched_setscheduler(0, os.{chosen}, os.sched_param(0)); "
    "scheduling.wait_for_turns(); print(os.sched_getscheduler(0))"
)

SWITCH = "import os; os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))"
allowed = pytest.mark.skipif(
    subprocess.run([sys.executable, "-c", SWITCH], capture_output=True, check=False).returncode != 0,
    reason="the system allows no other policy",
)


def policies(ctx: Context) -> set[int]:
    """Return the policies of all threads, gloo's included."""
    dist.all_reduce(torch.ones(1))
    return {os.sched_getscheduler(int(thread)) for thread in os.listdir("/proc/self/task")}


@allowed
@pytest.mark.skipif(os.sched_getscheduler(0) != os.SCHED_OTHER, reason="ranks keep the policy of this process")
def test_all_threads_of_a_rank_wait_for_their_turn(call: Call) -> None:
    assert call(policies) == [{os.SCHED_BATCH}] * 2


@pytest.mark.skipif(os.sched_getscheduler(0) == os.SCHED_BATCH, reason="ranks keep the policy of this process")
def test_ranks_that_measure_are_scheduled_as_always(torch_client: ForkserverClient) -> None:
    pool = Pool(LocalNode(torch_client), PoolSpec(2, timed=True), {})
    try:
        pool.open_group("first", 60)
        task = payload.dumps((policies, (), {}), [sys.modules[__name__]])
        found = [payload.loads(data) for data in pool.run(task, program="p", seed=0, timeout=60)]
        assert found == [{os.sched_getscheduler(0)}] * 2
    finally:
        pool.close()


@allowed
@pytest.mark.parametrize(
    ("chosen", "kept"),
    [("SCHED_OTHER", os.SCHED_BATCH), ("SCHED_IDLE", os.SCHED_IDLE), ("SCHED_BATCH", os.SCHED_BATCH)],
)
def test_a_policy_that_was_chosen_stays(chosen: str, kept: int) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", POLICY.format(chosen=chosen)], capture_output=True, text=True, check=True
    )
    assert int(ran.stdout) == kept


@pytest.mark.parametrize("error", [PermissionError(), OSError(errno.EINVAL, "Invalid argument")])
def test_a_sandbox_may_forbid_it_or_know_one_policy(monkeypatch: pytest.MonkeyPatch, error: OSError) -> None:
    asked = []

    def forbidden(pid: int, policy: int, param: os.sched_param) -> None:
        asked.append(policy)
        raise error

    monkeypatch.setattr(os, "sched_getscheduler", lambda pid: os.SCHED_OTHER)
    monkeypatch.setattr(os, "sched_setscheduler", forbidden)
    scheduling.wait_for_turns()
    assert asked == [os.SCHED_BATCH]
