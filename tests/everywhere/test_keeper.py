"""What a node's keeper starts ends with the run, with its parent, and with itself, however each of them ends."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from pytest_gpuperf.features.everywhere.custody import Custody, CustodyError
from pytest_gpuperf.features.everywhere.ray_node import read_last_lines
from tests.whole_run import environment

SOON = 30.0  # seconds
DAEMON = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if (daemon := os.fork()) == 0:
        time.sleep(3600)
    print(daemon, flush=True)
    os._exit(0)
os.wait()
"""
"""Leaves a process behind whose parent and session are its own, as Ray does."""


def in_custody(folder: Path, body: Callable[[Custody], Awaitable[int | None]]) -> int:
    """Return what the body returns, from a process of its own: if its keeper is killed, all its children are."""

    async def run() -> int | None:
        custody = await Custody.begin(folder)
        try:
            return await body(custody)
        finally:
            assert await custody.close()
            assert not custody.folder.exists()

    reading, writing = os.pipe()
    if (pid := os.fork()) == 0:
        try:
            os.write(writing, str(asyncio.run(run()) or 0).encode())
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)
        os._exit(0)
    os.close(writing)
    with open(reading) as stream:
        answer = stream.read()
    assert os.waitpid(pid, 0)[1] == 0, "see what its process printed"
    return int(answer)


def gone(pid: int) -> bool:
    until = time.monotonic() + SOON
    while time.monotonic() < until:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":  # its new parent has yet to look
            return True
        time.sleep(0.02)
    return False


def test_commands_have_their_own_status(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    async def body(custody: Custody) -> None:
        output = custody.folder / "output"
        assert await custody.run("a", ["sh", "-c", "echo said; exit 7"], os.environ, output) == 7
        assert read_last_lines(output) == "said"
        assert await custody.run("b", ["sh", "-c", "kill -9 $$"], os.environ, None) == 128 + signal.SIGKILL
        assert await custody.run("c", ["no such command"], os.environ, None) == 127
        assert await custody.run("d", [str(tmp_path)], os.environ, None) == 126

    in_custody(tmp_path, body)
    assert "gpuperf: [Errno 2] No such file or directory: 'no such command'" in capfd.readouterr().err


def test_a_signal_reaches_the_whole_command(tmp_path: Path) -> None:
    async def body(custody: Custody) -> None:
        output = custody.folder / "output"
        shell = ["sh", "-c", "echo runs; sleep 3600; echo never"]
        running = asyncio.create_task(custody.run("command", shell, os.environ, output))
        while read_last_lines(output) != "runs":
            await asyncio.sleep(0.05)
        custody.signal("command", signal.SIGTERM)
        assert await running == 128 + signal.SIGTERM
        assert read_last_lines(output) == "runs"

    in_custody(tmp_path, body)


def test_daemons_end_with_the_run(tmp_path: Path) -> None:
    async def body(custody: Custody) -> int:
        output = custody.folder / "output"
        assert await custody.run("ray", [sys.executable, "-c", DAEMON], os.environ, output) == 0
        daemon = int(read_last_lines(output))
        os.kill(daemon, 0)
        return daemon

    assert gone(in_custody(tmp_path, body))


def test_daemons_and_folders_end_with_a_keeper_that_is_killed(tmp_path: Path) -> None:
    other = tmp_path / "gpuperf-ray-x"

    async def body(custody: Custody) -> int:
        other.mkdir()
        custody.remove(str(other))
        output = custody.folder / "output"
        await custody.run("ray", [sys.executable, "-c", DAEMON], os.environ, output)
        running = asyncio.create_task(custody.run("command", ["sleep", "3600"], os.environ, None))
        await asyncio.sleep(0.2)
        os.kill(custody._process.pid, signal.SIGKILL)
        with pytest.raises(CustodyError, match=r"^the keeper of this node's processes \(pid \d+\) has ended"):
            await running
        with pytest.raises(CustodyError, match=r"^the keeper of this node's processes \(pid \d+\) has ended"):
            await asyncio.wait_for(custody.run("late", ["true"], os.environ, None), 60)
        return int(read_last_lines(output))

    assert gone(in_custody(tmp_path, body))
    assert not other.exists()


def test_daemons_end_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    script = f"""
import asyncio, os, sys
from pathlib import Path
from pytest_gpuperf.features.everywhere.custody import Custody

async def run():
    custody = await Custody.begin(Path({str(tmp_path)!r}))
    output = custody.folder / "output"
    await custody.run("ray", [sys.executable, "-c", {DAEMON!r}], os.environ, output)
    print(output.read_text().strip(), custody.folder, flush=True)
    await custody.run("command", ["sleep", "3600"], os.environ, None)

asyncio.run(run())
"""
    with subprocess.Popen(
        [sys.executable, "-c", script], env=environment(), stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        line = parent.stdout.readline()
        parent.kill()
    pid, folder = line.split()
    assert gone(int(pid))
    until = time.monotonic() + SOON
    while Path(folder).exists() and time.monotonic() < until:
        time.sleep(0.02)
    assert not Path(folder).exists()


def test_only_folders_of_runs_are_removed(tmp_path: Path) -> None:
    kept, removed = tmp_path / "gpuperf-leases", tmp_path / "gpuperf-ray-x"

    async def body(custody: Custody) -> None:
        for folder in (kept, removed):
            folder.mkdir()
            custody.remove(str(folder))
        custody.remove(str(tmp_path / "a" / "gpuperf-ray-y"))

    in_custody(tmp_path, body)
    assert kept.exists()
    assert not removed.exists()
