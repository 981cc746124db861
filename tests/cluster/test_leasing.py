"""The GPUs of a run's nodes are leased while its tests use them; only the GPUs are made up."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pytest_gpuperf.features.cluster import node_leases
from pytest_gpuperf.features.cluster.leasing import ClusterLeasing, list_wanted
from pytest_gpuperf.features.cluster.member import Member
from pytest_gpuperf.leases.folder import LeaseError
from pytest_gpuperf.leases.leases import Leases
from tests.cluster.members import member
from tests.cluster.programs_that_lease import CONFTEST, HOLDS
from tests.cluster.raylets import Raylets
from tests.whole_run import environment, run_pytest, write

SLOW = 300  # seconds; generous, since a machine may be busy
OF_B = "GPU-0-of-gpu-b"
TESTS = """
import pytest

def place(ctx):
    return ctx.node_name

@pytest.mark.ranks(nodes=2)
def test_first(ranks):
    assert ranks.run(place) == ["gpu-a", "gpu-b"]
"""


def until(happened: Callable[[], bool]) -> None:
    ends = time.monotonic() + SLOW
    while not happened():
        assert time.monotonic() < ends
        time.sleep(0.05)


def test_a_run_waits_for_a_lease_says_who_holds_it_and_leaves_none(
    two_nodes_with_gpus: Raylets, tmp_path: Path
) -> None:
    folder = tmp_path / "leases"
    leases = Leases(folder)
    write(tmp_path, {"conftest.py": CONFTEST, "test_it.py": HOLDS})
    lease = leases.acquire([OF_B], 1, holder="somebody else's test", timeout=0)
    options = ["-o", f"gpuperf_leases={folder}", "--cluster", two_nodes_with_gpus.address, "--gpus=2"]
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options]
    output = tmp_path / "output.txt"
    with (
        output.open("w") as out,
        subprocess.Popen(command, cwd=tmp_path, env=environment(), stdout=out, stderr=out) as controller,
    ):
        until(lambda: "waiting for" in output.read_text())
        said = f"gpuperf: node gpu-b: waiting for 1 of {OF_B} for 'test_it.py::test_it[2ranks]'; {OF_B} held by pid "
        assert f"{said}{os.getpid()} of " in output.read_text()
        assert "somebody else's test" in output.read_text()
        assert not list(tmp_path.glob("*.began"))
        lease.release()
        until(lambda: len(list(tmp_path.glob("*.began"))) == 2)
        with pytest.raises(LeaseError, match=r"held by pid \d+ .*test_it\.py::test_it\[2ranks\]"):
            leases.acquire([OF_B], 1, holder="somebody else's test", timeout=0)
        controller.kill()
    leases.acquire(["GPU-0-of-gpu-a", OF_B], 2, holder="somebody else's test", timeout=60).release()


def test_a_run_that_waits_in_vain_names_the_node(two_nodes_with_gpus: Raylets, tmp_path: Path) -> None:
    write(tmp_path, {"conftest.py": CONFTEST, "test_it.py": TESTS})
    options = ("--cluster", two_nodes_with_gpus.address, "--gpus=2", "-o", "gpuperf_lease_timeout=0.2")
    with Leases(tmp_path / ".leases").acquire([OF_B], 1, holder="somebody else's test", timeout=0):
        run = run_pytest(tmp_path, *options, timeout=SLOW)
    assert run.outcomes == {"test_first[2ranks]": "ERROR"}
    wanted = f"LeaseError: node gpu-b: wanted 1 of {OF_B} for 'test_it.py::test_first[2ranks]', got none within 0.2 s; "
    assert f"{wanted}{OF_B} held by pid {os.getpid()} " in run.text


class Run:
    """A run on nodes of this process."""

    def __init__(self, folder: Path, *nodes: Member, tell: Callable[[str], None] = lambda text: None) -> None:
        self.left = 0
        self.leasing = ClusterLeasing(lambda: nodes, folder, timeout=60, tell=tell, leave=self._leave)

    def _leave(self) -> None:
        self.left += 1


def free(folder: Path, *gpus: str, timeout: float = 0) -> bool:
    try:
        Leases(folder).acquire(gpus, len(gpus), holder="somebody else", timeout=timeout).release()
    except LeaseError:
        return False
    return True


def test_gpus_of_all_nodes_are_held_until_they_are_released(tmp_path: Path) -> None:
    run = Run(tmp_path, member("a", [0, 1]), member("b", [2, 3]))
    ways: list[Callable[[], tuple[str, ...]]] = [
        lambda: run.leasing.gpus(4, "a test"),
        lambda: run.leasing.machine("a test"),
    ]
    for take in ways:
        assert take() == ("GPU-0", "GPU-1", "GPU-2", "GPU-3")
        assert [free(tmp_path, f"GPU-{index}") for index in range(4)] == [False] * 4
        assert take() == ("GPU-0", "GPU-1", "GPU-2", "GPU-3")  # as perf tests of one launch do
        run.leasing.release(await_memory=True)
        assert free(tmp_path, "GPU-0", "GPU-1", "GPU-2", "GPU-3")
    assert run.left == 0


def test_another_run_sees_idle_ranks_and_is_made_way_for(tmp_path: Path) -> None:
    run, other = Run(tmp_path, member("a", [0])), Leases(tmp_path)
    run.leasing.gpus(1, "a test")
    run.leasing.release(staying={"GPU-0"})
    assert not free(tmp_path, "GPU-0")
    assert not run.leasing.is_wanted_alone({"GPU-0"})
    with ThreadPoolExecutor() as elsewhere:
        waiting = elsewhere.submit(other.acquire, ["GPU-0"], 1, holder="somebody else", timeout=60)
        until(lambda: run.leasing.is_wanted_alone({"GPU-0"}))
        run.leasing.release()
        waiting.result(60).release()


def test_a_run_that_waits_has_no_idle_ranks_in_the_way(tmp_path: Path) -> None:
    """The other one waits for these, and was there before."""
    run, other = Run(tmp_path, member("a", [0]), member("b", [1])), Leases(tmp_path)
    run.leasing.gpus(2, "a test")
    run.leasing.release(staying={"GPU-0", "GPU-1"})
    with ThreadPoolExecutor() as elsewhere:
        waiting = elsewhere.submit(other.acquire, ["GPU-0"], 1, holder="somebody else", timeout=60)
        until(lambda: run.leasing.is_wanted_alone({"GPU-0"}))
        taking = elsewhere.submit(run.leasing.gpus, 2, "another test")
        lease = waiting.result(60)
        assert not taking.done()
        lease.release()
        assert taking.result(60) == ("GPU-0", "GPU-1")
    assert run.left == 1


def test_a_run_that_is_interrupted_while_it_waits_holds_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tell(text: str) -> None:
        told.append(text)
        raise KeyboardInterrupt

    told: list[str] = []
    monkeypatch.setattr(node_leases, "_QUIET", 0.0)
    run = Run(tmp_path, member("a", [0]), member("b", [1]), tell=tell)
    with Leases(tmp_path).acquire(["GPU-1"], 1, holder="somebody else", timeout=0):
        with pytest.raises(KeyboardInterrupt):
            run.leasing.machine("a test")
        assert free(tmp_path, "GPU-0", timeout=60)
    assert free(tmp_path, "GPU-1", timeout=60)
    assert [text.partition(" held by ")[0] for text in told] == ["node b: waiting for 1 of GPU-1 for 'a test'; GPU-1"]


def test_a_node_that_is_lost_keeps_no_test_waiting(tmp_path: Path) -> None:
    a, b = member("a", [0]), member("b", [1])
    run = Run(tmp_path, a, b)
    run.leasing.gpus(2, "a test")
    b.lost = "it is gone"
    run.leasing.release()
    assert free(tmp_path, "GPU-0")
    assert not run.leasing.is_wanted_alone({"GPU-1"})


def test_nodes_lease_in_one_order_and_those_of_one_machine_together() -> None:
    a, b, c = member("a", [1], [1, 2]), member("b", [3], [3, 4, 5]), member("c", [5], [3, 4, 5])
    of_run = [(a, ("GPU-1",)), (b, ("GPU-3", "GPU-5"))]
    of_nodes = [(a, ("GPU-1", "GPU-2")), (b, ("GPU-3", "GPU-5", "GPU-4"))]
    for order in ([a, b, c], [c, b, a]):
        assert list_wanted(order, alone=False) == of_run
        assert list_wanted(order, alone=True) == of_nodes


def test_a_gpu_that_two_nodes_of_one_machine_share_is_leased_once() -> None:
    a, b = member("a", [1], [1, 2]), member("b", [1], [1, 2])
    assert list_wanted([a, b], alone=False) == [(a, ("GPU-1",))]
    assert list_wanted([a, b], alone=True) == [(a, ("GPU-1", "GPU-2"))]
