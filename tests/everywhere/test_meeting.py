"""Processes of a job meet, or say why not: on one machine, before Ray is started."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from pytest_gpuperf.features.everywhere.channel import Channel
from pytest_gpuperf.features.everywhere.launcher import Place, find_place
from pytest_gpuperf.features.everywhere.node import follow
from pytest_gpuperf.features.everywhere.peers import Peers
from pytest_gpuperf.features.everywhere.secret import Secret
from pytest_gpuperf.features.everywhere.settings import UNAVAILABLE
from tests.everywhere.examples import settings
from tests.whole_run import environment

SOON = 60.0  # seconds; the machine may be busy


class Jobs:
    """Starts processes of jobs, and ends them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.started: list[subprocess.Popen[str]] = []
        self.pod = {
            "PET_NNODES": "2",
            "PET_MASTER_ADDR": "127.0.0.1",
            "PET_MASTER_PORT": str(random.SystemRandom().randrange(1 << 30)),
        }

    def start(self, env: Mapping[str, str], *options: str, command: tuple[str, ...] = ("true",)) -> int:
        """Starts one process of this command; return its number."""
        line = [sys.executable, "-m", "pytest_gpuperf", "everywhere", *options, "--", *command]
        own = {"HOME": str(self.folder), "RAY_AUTH_TOKEN": "abc", **env}
        self.started.append(
            subprocess.Popen(line, env=environment(**own), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        )
        return len(self.started) - 1

    def node(self, rank: int, *options: str, **env: str) -> int:
        """Starts a pod of a job of two."""
        return self.start({**self.pod, "PET_NODE_RANK": str(rank), **env}, *options)

    def ended(self, number: int) -> tuple[int, str]:
        """Return the exit status of a process, and what it has printed."""
        text, _ = self.started[number].communicate(timeout=SOON)
        return self.started[number].returncode, text

    @property
    def ports(self) -> list[int]:
        """The ports at which the pods meet."""
        return settings(find_place({**self.pod, "PET_NODE_RANK": "0"}, head=None, nodes=None, rank=None)).ports


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[Jobs]:
    made = Jobs(tmp_path)
    yield made
    for process in made.started:
        process.kill()
        process.communicate()


def test_what_preflight_finds_ends_the_run_on_all_nodes_before_ray_starts(jobs: Jobs) -> None:
    head, node = jobs.node(0), jobs.node(1)
    status, text = jobs.ended(head)
    assert status == UNAVAILABLE, text
    host = socket.gethostname()
    said = f"gpuperf: error: node {host}-1: it reaches the first node from 127.0.0.1, which no other host reaches: give"
    assert said in text
    assert "gpuperf: error: the nodes cannot run the command: 1 error above" in text
    status, text = jobs.ended(node)
    assert status == UNAVAILABLE, text
    assert "error: the nodes cannot run the command" in text


def test_a_token_that_differs_or_lacks_is_said_on_both_sides(jobs: Jobs) -> None:
    jobs.pod["PET_NNODES"] = "3"
    head, other, none = jobs.node(0, "--wait=12"), jobs.node(1, RAY_AUTH_TOKEN="other"), jobs.node(2, RAY_AUTH_TOKEN="")
    status, text = jobs.ended(other)
    assert status == UNAVAILABLE, text
    assert "the first node, at 127.0.0.1, refuses this one: another token" in text
    lacks = "the head has its secret from RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH, and this node has none there"
    status, text = jobs.ended(none)
    assert (status, lacks in text) == (UNAVAILABLE, True), text
    status, text = jobs.ended(head)
    host = socket.gethostname()
    assert status == UNAVAILABLE
    assert f"error: node number 1, number 2 did not come within 12 s; came: {host}; refused: " in text
    assert f"refused: 127.0.0.1: host {host} has another token" in text
    assert lacks in text


def test_messages_to_a_side_that_is_gone_print_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async def send_to_nobody() -> None:
        ends: list[asyncio.StreamWriter] = []
        server = await asyncio.start_server(lambda _, writer: ends.append(writer), "127.0.0.1", 0)
        channel = Channel(*await asyncio.open_connection(*server.sockets[0].getsockname()), silence=1.0)
        while not ends:
            await asyncio.sleep(0.01)
        ends[0].transport.abort()
        for _ in range(20):
            await channel.send("beat")
            await asyncio.sleep(0.01)
        server.close()

    asyncio.run(send_to_nobody())
    assert caplog.text == ""


def test_a_token_that_differs_is_said_on_both_sides_also_where_two_jobs_may_have_one_head(jobs: Jobs) -> None:
    two = ("--head=127.0.0.1", "--nodes=2", "--wait=4")
    head = jobs.start({}, *two, f"--port={jobs.ports[0]}", "--rank=0")
    status, text = jobs.ended(jobs.start({"RAY_AUTH_TOKEN": "other"}, *two, f"--port={jobs.ports[0]}", "--rank=1"))
    assert (status, "(the first node, at 127.0.0.1, refuses this one: another token)" in text) == (UNAVAILABLE, True)
    assert f"refused: 127.0.0.1: host {socket.gethostname()} has another token" in jobs.ended(head)[1]


def test_all_processes_of_the_only_node_end_with_the_status_of_the_command(jobs: Jobs) -> None:
    pytest.importorskip("ray")
    hydra = {"PMI_SIZE": "2", "MPI_LOCALNRANKS": "2"}
    started = [
        jobs.start({**hydra, "PMI_RANK": local, "MPI_LOCALRANKID": local}, command=("sh", "-c", "echo runs; exit 7"))
        for local in "01"
    ]
    (leads, led), (waits, waited) = map(jobs.ended, started)
    assert (leads, "runs" in led) == (7, True), led
    assert (waits, waited) == (7, "")


def test_a_node_of_a_job_that_is_complete_is_refused_on_both_sides(capsys: pytest.CaptureFixture[str]) -> None:
    """A second job with the same identity on the same nodes, or a node that was started twice."""
    job = settings(Place("a launcher", "job", 1, ("127.0.0.1",), first=False, leads=True))

    async def refused() -> tuple[int, list[str]]:
        peers = Peers(job, Secret("environment", "abc"), lambda _: None)
        await peers.listen()
        status = await follow(job, {"RAY_AUTH_TOKEN": "abc"})
        await peers.end(0, "", 1.0)
        return status, peers.refused

    status, told = asyncio.run(refused())
    assert status == UNAVAILABLE
    assert (
        "the first node, at 127.0.0.1, refuses this one: all 1 nodes of this job have come" in capsys.readouterr().err
    )
    assert told == [f"127.0.0.1: host {socket.gethostname()} has come, and all nodes were there"]


def test_a_node_that_does_not_come_is_named_after_the_time(jobs: Jobs) -> None:
    slurm = {"SLURM_JOB_ID": jobs.pod["PET_MASTER_PORT"], "SLURM_STEP_NODELIST": "gpu[1-3]"}
    head = jobs.start({**slurm, "SLURM_NODEID": "0", "SLURM_LOCALID": "0"}, "--wait=1")
    status, text = jobs.ended(head)
    assert status == UNAVAILABLE
    assert f"error: node gpu2, gpu3 did not come within 1 s; came: {socket.gethostname()}. Look at the output" in text


def test_a_head_that_does_not_answer_is_named_with_its_ports(jobs: Jobs) -> None:
    status, text = jobs.ended(jobs.node(1, "--wait=1", "--port=1"))
    assert status == UNAVAILABLE
    assert "cannot join the first node (127.0.0.1) at ports 1 within 1 s (nothing listens there). Look" in text


def test_a_port_that_is_taken_is_said_or_another_one_is_used(jobs: Jobs) -> None:
    with socket.create_server(("", 0)) as server:
        status, text = jobs.ended(jobs.node(0, f"--port={server.getsockname()[1]}"))
        assert status == UNAVAILABLE
        assert f"error: this node cannot listen at port {server.getsockname()[1]}: " in text
        assert "give another --port" in text
    with contextlib.ExitStack() as stack:  # others listen at the first ports, and say nothing or nonsense
        for port in jobs.ports[:2]:
            stack.enter_context(socket.create_server(("", port)))
        head = jobs.node(0, "--lost-after=3")
        node = jobs.node(1, "--lost-after=3")
        assert "the nodes cannot run the command: 1 error above" in jobs.ended(head)[1]
        assert "the nodes cannot run the command" in jobs.ended(node)[1]


def test_who_sends_nonsense_disturbs_nobody(jobs: Jobs) -> None:
    head = jobs.node(0)
    until = time.monotonic() + SOON
    sent = 0
    while sent < 4:
        assert time.monotonic() < until
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", jobs.ports[0]), 1) as connected:
            hello = b'{"is": "hello", "nonce": 1}\n'
            connected.sendall([b"GET / HTTP/1.0\r\n\r\n", b"[]\n", b"\xff" * 2**21, hello][sent])
            sent += 1
    node = jobs.node(1)
    assert "the nodes cannot run the command: 1 error above" in jobs.ended(head)[1]
    assert jobs.ended(node)[0] == UNAVAILABLE


def _reached(port: int) -> socket.socket:
    """A connection to a head, which may only be starting."""
    until = time.monotonic() + SOON
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), 1)
        except OSError:
            assert time.monotonic() < until
            time.sleep(0.05)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_job_that_is_cancelled_while_it_waits_ends_at_once(jobs: Jobs, rank: int) -> None:
    if rank == 1:
        with socket.create_server(("127.0.0.1", jobs.ports[0])) as head:
            head.settimeout(SOON)
            number = jobs.node(rank)
            connected, _ = head.accept()  # the node waits for an answer
    else:
        number, connected = jobs.node(rank), _reached(jobs.ports[0])  # the head waits for nodes
    connected.close()
    os.kill(jobs.started[number].pid, signal.SIGTERM)
    status, text = jobs.ended(number)
    assert status == 128 + signal.SIGTERM, text


def test_a_run_inside_of_ray_is_refused(jobs: Jobs) -> None:
    head, node = jobs.node(0, RAY_ADDRESS="10.0.0.9:6379"), jobs.node(1)
    assert "RAY_ADDRESS is 10.0.0.9:6379, so this is part of a running Ray cluster" in jobs.ended(head)[1]
    assert jobs.ended(node)[0] == UNAVAILABLE


@pytest.mark.parametrize(
    ("options", "command", "said"),
    [
        ((), ("true",), "no launcher has started this process: looked for the variables of torchrun: LOCAL_RANK"),
        (("--head=a", "--nodes=2"), (), "no command is given: write it after --, for example `everywhere -- pytest"),
        (("--nodes=0",), ("true",), "argument --nodes: takes a number of 1 or more, got '0'"),
        (("--nodes=x",), ("true",), "argument --nodes: takes a number of 1 or more, got 'x'"),
        (("--port=70000",), ("true",), "argument --port: takes a port from 1 to 65535, got '70000'"),
        (("--port=x",), ("true",), "argument --port: takes a port from 1 to 65535, got 'x'"),
        (("--wait=-1",), ("true",), "argument --wait: takes seconds, 0 or more, got '-1'"),
        (("--wait=0",), ("true",), "argument --wait: takes seconds, more than 0, got '0'"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    jobs: Jobs, options: tuple[str, ...], command: tuple[str, ...], said: str
) -> None:
    status, text = jobs.ended(jobs.start({}, *options, command=command))
    assert status == 2
    assert said in " ".join(text.split()), text
