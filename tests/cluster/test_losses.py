"""What a run does once nodes or the head are gone, with everything of Ray's made up."""

from __future__ import annotations

import contextlib
import socket
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from ray.exceptions import GetTimeoutError, RayActorError

from pytest_gpuperf.features.cluster import connection
from pytest_gpuperf.features.cluster import leasing as leasing_module
from pytest_gpuperf.features.cluster import member as member_module
from pytest_gpuperf.features.cluster import membership as membership_module
from pytest_gpuperf.features.cluster import watching as watching_module
from pytest_gpuperf.features.cluster.admission import require_reserved_gpus
from pytest_gpuperf.features.cluster.cluster import Cluster
from pytest_gpuperf.features.cluster.connection import Connection
from pytest_gpuperf.features.cluster.failures import ClusterError, NodeLostError
from pytest_gpuperf.features.cluster.leasing import ClusterLeasing
from pytest_gpuperf.features.cluster.member import Member, await_long_results
from pytest_gpuperf.features.cluster.membership import Membership
from pytest_gpuperf.features.cluster.reservation import Reservation
from pytest_gpuperf.features.cluster.watching import ClusterWatch
from pytest_gpuperf.features.cluster.wire import NodeFacts
from pytest_gpuperf.hardware.machine import Machine
from pytest_gpuperf.leases.memory import RETURN_SECONDS
from pytest_gpuperf.markers import RanksMarker
from pytest_gpuperf.ranks.failures import LaunchError
from pytest_gpuperf.run.current_ranks import CurrentRanks
from pytest_gpuperf.run.nodes import Wanted
from tests.cluster.members import member

HEADLESS = (
    "the cluster's head at {} does not answer, and Ray's daemons end a minute after their head: start the cluster "
    "again, and run the tests again"
)


def test_a_head_at_which_nothing_listens_is_gone() -> None:
    assert Connection("127.0.0.1:1").describe_lost_head(5.0) == HEADLESS.format("127.0.0.1:1")


def test_a_head_that_listens_and_answers_nothing_is_gone_for_the_rest_of_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        cluster = Connection(address)
        for answers, said in ((True, ""), (False, HEADLESS.format(address)), (True, HEADLESS.format(address))):
            monkeypatch.setattr(connection, "answers_requests", lambda timeout, answers=answers: answers)
            assert cluster.describe_lost_head(5.0) == said


DAEMONLESS = (
    "Ray's daemon on the node that runs pytest has ended, and Ray has ended the run's hosts on all nodes with it: "
    "start it again with `ray start`, and run the tests again"
)


@pytest.mark.parametrize("head", ["answers", "is gone"])
def test_a_daemon_of_this_node_that_has_ended_cuts_the_run_off_unless_the_head_did(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, head: str
) -> None:
    monkeypatch.chdir(tmp_path)  # a socket's path must be short
    monkeypatch.setattr(connection, "answers_requests", lambda timeout: True)
    with contextlib.ExitStack() as stack:
        address = "127.0.0.1:1"
        if head == "answers":
            listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            address = f"127.0.0.1:{listener.getsockname()[1]}"
        cluster = Connection(address, "raylet")
        with socket.socket(socket.AF_UNIX) as daemon:
            daemon.bind("raylet")
            daemon.listen(0)
            for _ in range(3):  # as stopped, it takes none of them; its queue is full after the first
                assert cluster.daemonless(5.0) == ""
        assert cluster.daemonless(5.0) == (DAEMONLESS if head == "answers" else "")
        assert cluster.cut_off(5.0) == (DAEMONLESS if head == "answers" else HEADLESS.format(address))
        Path("raylet").unlink()
        assert cluster.daemonless(5.0) == (DAEMONLESS if head == "answers" else "")


@pytest.mark.parametrize(
    ("ended", "said"),
    [(DAEMONLESS, DAEMONLESS), ("", "node gpu-b is gone: Ray's daemon on it ended, or it is cut off")],
)
def test_a_node_is_not_blamed_for_the_daemon_beside_pytest(
    monkeypatch: pytest.MonkeyPatch, ended: str, said: str
) -> None:
    monkeypatch.setattr(member_module, "ray", Ray(answers=False))
    facts = NodeFacts({}, Machine((), None, False), "tcp")
    node = Member("gpu-b", "10.0.0.1", 0, 1, Actor(), facts, 2.0, lambda: ended, lambda: ended or "the head is gone")
    node.lose_by(RayActorError())
    assert node.story() == (said if ended else f"{said} (RayActorError); the head is gone")


TWO = Wanted(2, (), on_gpus=False, timed=False)


def lost_node() -> Member:
    facts = NodeFacts({}, Machine((), None, False), "tcp")
    return Member("gpu-b", "10.0.0.1", 1, 1, None, facts, 1.0, lost="node gpu-b is gone")


TWO_NODES = Reservation(({"CPU": 1.0},) * 2, gpus=False)


def membership(*members: Member, connection: Any = None, group: Any = None) -> Any:
    """A run that has these nodes."""
    made = Membership(connection, group, TWO_NODES, ((), {}), 0.25, False, None)
    made.members = list(members)
    return made


def cluster_without_nodes(headless: str) -> tuple[Any, list[float]]:
    cluster: Any = object.__new__(Cluster)
    cluster._reserved, cluster._nodes = TWO_NODES, membership(lost_node())
    waits: list[float] = []

    def take_in(timeout: float) -> None:
        waits.append(round(timeout, 1))
        time.sleep(timeout)

    nodes = cluster._nodes
    nodes.cut_off, nodes._start_host, nodes._take_in = lambda: headless, lambda bundle: bundle, take_in
    return cluster, waits


def test_after_a_loss_one_test_waits_for_another_node() -> None:
    cluster, waits = cluster_without_nodes("")
    for _ in range(2):
        with pytest.raises(LaunchError, match=r"^no node is left; the run has lost nodes: node gpu-b is gone$"):
            cluster.place(TWO)
    assert waits == [0.5, 0.0]
    cluster._nodes.members.append(lost_node())
    with pytest.raises(LaunchError):
        cluster.place(TWO)
    assert waits == [0.5, 0.0, 0.5]


def test_nodes_that_another_run_lends_are_not_replaced() -> None:
    cluster, waits = cluster_without_nodes("")
    cluster._nodes._lent = "by another run"
    with pytest.raises(LaunchError, match=r"^no node is left; the run has lost nodes: node gpu-b is gone$"):
        cluster.place(TWO)
    assert (waits, cluster._nodes._coming) == ([], {})


def test_without_a_head_that_comes_before_the_losses() -> None:
    cluster, waits = cluster_without_nodes("the head is gone")
    with pytest.raises(LaunchError, match=r"^no node is left; the head is gone; the run has lost nodes: node gpu-b"):
        cluster.place(TWO)
    assert waits == []
    assert cluster.report() == [
        "cluster: node gpu-b is gone",
        "cluster: the head is gone",
        "cluster: the run began with 2 nodes and ended with 0",
    ]


def test_once_the_daemon_beside_pytest_has_ended_no_node_is_used() -> None:
    cluster, _ = cluster_without_nodes(DAEMONLESS)
    answers: Any = member("gpu-a", [0])
    answers.lose = lambda reason: setattr(answers, "lost", reason)
    cluster._nodes.members, cluster._nodes._describe_dead_daemon = [answers], lambda: DAEMONLESS
    cluster.look()
    assert cluster.losses == [DAEMONLESS]
    assert cluster.capacity.slots == ()


def test_what_ended_all_nodes_is_reported_once() -> None:
    cluster, _ = cluster_without_nodes(DAEMONLESS)
    for node in (lost_node(), lost_node()):
        node.lost = DAEMONLESS
        cluster._nodes.members.append(node)
    cluster._nodes.members = cluster._nodes.members[1:]
    with pytest.raises(LaunchError) as caught:
        cluster.place(TWO)
    assert str(caught.value) == f"no node is left; {DAEMONLESS}"
    assert cluster.report() == [f"cluster: {DAEMONLESS}", "cluster: the run began with 2 nodes and ended with 0"]


def test_a_run_that_lost_no_node_reports_none() -> None:
    cluster, _ = cluster_without_nodes("")
    cluster._nodes.members = []
    assert cluster.report() == []


class Ray:
    """Stands for Ray: calls of ``clock`` are answered or not, all others never are."""

    def __init__(self, *, answers: bool) -> None:
        self.answers = answers
        self.asked = 0

    def wait(self, references: list[Any], timeout: float) -> tuple[list[Any], list[Any]]:
        self.asked += 1
        assert self.asked < 3, "nobody asked whether the node still answers"
        return [], references

    def get(self, reference: Any, timeout: float) -> float:
        if reference == "clock" and self.answers:
            return 0.0
        raise GetTimeoutError

    def kill(self, actor: Any) -> None:
        assert actor is not None


class Actor:
    """Stands for a node's host."""

    def __getattr__(self, method: str) -> Any:
        return self

    def options(self, concurrency_group: str) -> Any:
        assert concurrency_group == "wake"
        return self

    def remote(self, *args: Any) -> str:
        return "clock"


@pytest.mark.parametrize(("answers", "timeout", "said"), [(False, 420.0, "2 s"), (True, 0.0, "0 s")])
def test_a_node_that_works_for_long_must_answer_meanwhile(
    monkeypatch: pytest.MonkeyPatch, answers: bool, timeout: float, said: str
) -> None:
    ray = Ray(answers=answers)
    monkeypatch.setattr(member_module, "ray", ray)
    facts = NodeFacts({}, Machine((), None, False), "tcp")
    member = Member("gpu-b", "10.0.0.1", 0, 1, Actor(), facts, 2.0)
    with pytest.raises(NodeLostError, match=f"^node gpu-b did not answer within {said}: it is stopped, cut off or"):
        await_long_results([(member, "start")], timeout)
    assert ray.asked == 2  # whether there is a result yet, and for a moment


class Clock:
    """Time that passes only while an answer is waited for."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


class SilentRay(Ray):
    """Waits as long as it may, and no node answers."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(answers=False)
        self._clock = clock

    def wait(self, references: list[Any], timeout: float) -> tuple[list[Any], list[Any]]:
        self._clock.now += timeout
        return [], references

    def get(self, reference: Any, timeout: float) -> float:
        self._clock.now += timeout
        raise GetTimeoutError


@pytest.mark.parametrize("how", ["look", "start", "watch", "release"])
def test_nodes_that_are_silent_together_share_one_deadline(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    clock = Clock()
    for module in (member_module, membership_module, watching_module, leasing_module):
        monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(member_module, "ray", SilentRay(clock))
    facts = NodeFacts({}, Machine((), None, False), "tcp")
    nodes = [Member(f"gpu-{k}", "10.0.0.1", k, 1, Actor(), facts, 15.0) for k in range(63)]
    run = membership(*nodes)
    run._describe_dead_daemon, run.heal = str, lambda wait: None
    match how:
        case "look":
            run.look()
        case "start":
            with pytest.raises(NodeLostError, match=r"^node gpu-0 did not answer within 15 s"):
                await_long_results([(node, "start") for node in nodes], 420.0)
        case "watch":
            with ClusterWatch([(node, ["GPU-0"]) for node in nodes]):
                pass
        case _:
            leasing = ClusterLeasing(lambda: nodes, Path(), timeout=1.0, tell=lambda text: None, leave=lambda: None)
            leasing._alone, leasing._asked = True, dict.fromkeys(nodes, frozenset(("GPU-0",)))
            leasing.release()
    assert all(node.lost.endswith("s: it is stopped, cut off or overloaded") for node in nodes)
    assert clock.now - 100.0 < 15.0 + RETURN_SECONDS + 63 * 0.11


def test_another_node_in_place_of_a_lost_one_is_asked_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster: Any = object.__new__(Cluster)
    nodes = cluster._nodes = membership()
    cluster._lacking, cluster._lacking_of = {"a_package": False}, 0
    nodes._coming = {0: ("identity", "actor", "facts")}
    came: Any = member("gpu-b", [])
    came.call, came.result = lambda *_: None, lambda *_, since: True
    nodes._make_member = lambda bundle, identity, actor, facts: came
    nodes._require_alike = lambda: None
    assert not cluster.lacks("a_package")
    monkeypatch.setattr(ray, "wait", lambda references, timeout: (references, []))
    monkeypatch.setattr(ray, "get", lambda reference, timeout: reference)
    nodes._take_in(0.0)
    assert [member.name for member in nodes.members] == ["gpu-b"]
    came.result = lambda *_, since: False
    assert cluster.lacks("a_package")


@pytest.mark.parametrize("slots", [1, 3])
def test_a_node_whose_process_sees_other_gpus_than_ray_reserved_is_refused(slots: int) -> None:
    right, wrong = member("gpu-a", [0, 1]), member("gpu-b", [0, 1])
    wrong.slots = slots
    require_reserved_gpus([right])
    with pytest.raises(ClusterError) as caught:
        require_reserved_gpus([right, wrong])
    assert str(caught.value) == (
        f"node gpu-b: Ray has reserved {slots} GPUs for the run, and the run's process there sees 2. Start Ray's "
        "daemon with as many as there are (`ray start --num-gpus`), and without "
        "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"
    )


@pytest.mark.parametrize(("launch", "order"), [(None, ["look", "placed", "lease"]), (1, ["look", "lease"])])
def test_a_node_comes_in_place_of_a_lost_one_before_gpus_are_leased(launch: int | None, order: list[str]) -> None:
    """A perf test of a run that has lost a node fails anyway."""
    ranks: Any = object.__new__(CurrentRanks)
    done: list[str] = []

    def noted(name: str) -> Any:
        return lambda *_, **__: done.append(name)

    marker = RanksMarker((2,))
    ranks._current = SimpleNamespace(world_size=2, prepared=False, launch=launch, gpus=(), marker=marker)
    ranks._nodes = SimpleNamespace(look=noted("look"), losses=[])
    ranks._supply = SimpleNamespace(place=noted("placed"), lease=noted("lease"), bring_up=noted("pool"))
    ranks._prepare_launch = noted("launch")
    ranks.prepare()
    assert [what for what in done if what in ("look", "placed", "lease")] == order


@pytest.mark.parametrize("wait", [True, False])
def test_a_node_whose_ranks_still_start_when_others_are_given_up_is_not_lost(wait: bool) -> None:
    """It answers at once what it can, and ends its ranks once they have started. After Ctrl-C nobody waits for that."""
    slow: Any = member("gpu-a", [0])

    def result(reference: Any, *, since: float | None = None) -> Any:
        if not slow.await_answer(reference, 0.1):
            slow.lost = "node gpu-a did not answer"
            raise NodeLostError(slow.lost)
        return reference.result()

    slow.result = result
    started = slow.threads[False].submit(time.sleep, 1.0)
    ended: list[int] = []
    slow.host.end = lambda pool, ask_first: ended.append(pool)
    cluster: Any = object.__new__(Cluster)
    cluster._abandon(7, [slow, lost_node()], wait=wait)
    assert started.done() is wait
    assert slow.lost == ""
    slow.threads[False].shutdown(wait=True)
    assert ended == [7]


def test_a_node_that_died_before_the_run_is_named_while_ray_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    there = [alive("gpu-a", "1"), alive("gpu-b", "2")]
    monkeypatch.setattr(ray, "nodes", lambda: there)
    to_ray = Connection("10.0.0.1:6379")
    to_ray.nodes()
    waits: list[float] = []

    def wait(timeout: float) -> bool:
        waits.append(timeout)
        there[1]["Alive"] = len(waits) < 3
        return False

    nodes = membership(connection=to_ray, group=SimpleNamespace(wait=wait))
    with pytest.raises(
        ClusterError, match=r"^node gpu-b is gone: it was in the cluster when this run began, and Ray's"
    ):
        nodes.join()
    assert len(waits) == 3
    monkeypatch.setattr(membership_module, "JOIN_TIMEOUT", -1.0)
    with pytest.raises(
        ClusterError, match=r"^Ray did not give the run 2 nodes with a CPU within -1 s: others use them"
    ):
        nodes.join()


def alive(name: str, identity: str) -> dict[str, Any]:
    return {"NodeName": name, "NodeID": identity, "Alive": True, "NodeManagerAddress": "10.0.0.1", "Resources": {}}


def test_a_test_whose_nodes_are_lost_before_its_set_up_shows_the_reason_only(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    def prepare(self: CurrentRanks) -> None:
        raise LaunchError("no node is left; the run has lost nodes: node gpu-b is gone")

    monkeypatch.setattr(CurrentRanks, "prepare", prepare)
    pytester.makepyfile("import pytest\n@pytest.mark.ranks(2)\ndef test_it(ranks): pass\n")
    lines = pytester.runpytest_inprocess("--gpus=0").outlines
    start = next(index for index, line in enumerate(lines) if "ERROR at setup of test_it" in line)
    end = next(index for index, line in enumerate(lines) if "short test summary" in line)
    said = [line for line in lines[start + 1 : end] if line]
    assert said[0].endswith("LaunchError: no node is left; the run has lost nodes: node gpu-b is gone")
    assert len(said) <= 3, said
