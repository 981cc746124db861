"""Hosts in namespaces are apart, and their faults are real."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hosts.hosts import Host, hosts, lacking, settled
from tests.whole_run import ROOT, environment

pytestmark = pytest.mark.skipif(bool(lacking()), reason=lacking() or "it can")
CONNECT = """
import socket, sys, time
socket.create_connection((sys.argv[1], 5000), 2).sendall(bytes(int(sys.argv[2])))
"""
RECEIVE = """
import socket, sys, time
with socket.create_server(("", 5000)) as server:
    print("listens", flush=True)
    server.settimeout(20)
    peer, (address, _) = server.accept()
    began, size = time.perf_counter(), 0
    while data := peer.recv(1 << 20):
        size += len(data)
    print(address, size, time.perf_counter() - began)
"""


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Host]]:
    with hosts(2, tmp_path_factory.mktemp("two")) as made:
        yield made


def sent(receiver: Host, sender: Host, size: int) -> list[str]:
    with receiver.start("python", "-c", RECEIVE) as listening:
        assert listening.stdout is not None
        assert listening.stdout.readline() == "listens\n"
        done = sender.run("python", "-c", CONNECT, receiver.name, str(size), check=False)
        if done.returncode:
            receiver.signal("socket.create_server", signal.SIGKILL)
        return listening.stdout.read().split() if done.returncode == 0 else []


def test_hosts_have_names_addresses_and_memory_of_their_own(two: list[Host]) -> None:
    facts = ["hostname", "cat /proc/sys/kernel/random/boot_id /etc/machine-id"]
    one, other = ([host.run("sh", "-c", fact).stdout for fact in facts] for host in two)
    assert one[0] == "h1\n"
    assert other[0] == "h2\n"
    assert one[1] != other[1]
    two[0].run("sh", "-c", "echo mine > /tmp/file; echo mine > /dev/shm/file")
    assert two[1].run("ls", "/tmp/file", "/dev/shm/file", check=False).returncode != 0
    assert sent(two[1], two[0], 1000)[:2] == ["10.77.0.1", "1000"]


def test_a_link_has_a_rate(two: list[Host]) -> None:
    size = 4 << 20
    two[1].rate("80mbit")
    try:
        _, received, seconds = sent(two[1], two[0], size)
    finally:
        two[1].rate("100gbit")
    assert int(received) == size
    assert float(seconds) > 0.8 * 8 * (size - 131072) / 80e6  # a busy machine takes longer, and never less


def test_a_dropped_port_and_a_pulled_cable_answer_nothing(two: list[Host]) -> None:
    two[1].drop("tcp dport 5000")
    assert sent(two[1], two[0], 10) == []
    two[1].drop("tcp dport 5001")
    assert sent(two[1], two[0], 10)[:2] == ["10.77.0.1", "10"]
    two[1].cut()
    assert sent(two[1], two[0], 10) == []
    two[1].plug()
    assert sent(two[1], two[0], 10)[:2] == ["10.77.0.1", "10"]


def test_packets_are_lost(two: list[Host]) -> None:
    two[1].lose(50)
    try:
        text = two[0].run("ping", "-c", "100", "-i", "0.002", "-W", "1", two[1].name, check=False).stdout
    finally:
        two[1].drop_nothing()
    lost = float(text.partition("% packet loss")[0].split()[-1])
    assert 20 < lost < 80


def test_debians_hosts_resolve_their_own_name_to_loopback(tmp_path: Path) -> None:
    with hosts(1, tmp_path, debian=True) as (host,):
        assert host.run("getent", "ahostsv4", host.name).stdout.split()[0] == "127.0.1.1"


def test_a_killed_host_ends_with_all_of_its_processes(tmp_path: Path) -> None:
    with hosts(2, tmp_path) as (one, other):
        with one.start("sleep", "1000") as sleeping:
            while not one.processes("sleep 1000"):
                time.sleep(0.05)
            one.kill()
            assert sleeping.wait(20) != 0
        assert other.run("ping", "-c", "1", "-W", "1", "h1", check=False).returncode != 0


def test_hosts_end_with_the_process_that_made_them(tmp_path: Path) -> None:
    script = f"""
import time
from pathlib import Path
from tests.hosts.hosts import hosts
with hosts(1, Path({str(tmp_path)!r})) as (host,):
    host.start("sleep", "4242")
    while not host.processes("sleep 4242"):
        time.sleep(0.05)
    print(*host.processes("sleep 4242"), flush=True)
    time.sleep(1000)
"""
    with subprocess.Popen(
        [sys.executable, "-c", script], env=environment(), cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as maker:
        assert maker.stdout is not None
        pid = int(maker.stdout.readline().split()[-1])
        maker.kill()
    until = time.monotonic() + 20
    while Path(f"/proc/{pid}").exists() and time.monotonic() < until:
        time.sleep(0.05)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_what_a_host_has_left_is_listed(two: list[Host]) -> None:
    before = two[0].processes()
    with two[0].start("sleep", "77"):
        while not two[0].processes("sleep 77"):
            time.sleep(0.05)
        assert "sleep 77" in " ".join(settled(two[0], before, 0.0))
        two[0].signal("sleep 77", signal.SIGKILL)
    assert settled(two[0], before) == []
