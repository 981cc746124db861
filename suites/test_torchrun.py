"""What starts torchrun for a test leaves no process behind, and says what is missing."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from suites.shared import torchrun
from suites.shared.torchrun import (
    Job,
    JobFailed,
    JobTimeout,
    PortTaken,
    TooFewGpus,
    Torchrun,
    TorchrunMissing,
    meeting_place,
    torchrun_path,
)

# As torchrun does it: a process in a session of its own, which ignores what would end it, and tells its id.
STUBBORN = "setsid sh -c 'trap \"\" TERM INT HUP; echo $$ > {pids}; while true; do sleep 1; done' & "


def written(path: Path) -> int:
    """The process id in a file, once it is there."""
    deadline = time.monotonic() + 60
    while not path.exists() or not path.read_text(encoding="utf-8").strip():
        assert time.monotonic() < deadline, f"nobody has written {path}"
        time.sleep(0.01)
    return int(path.read_text(encoding="utf-8"))


def gone(pid: int, within: float = 60.0) -> bool:
    """Whether a process ends in time."""
    deadline = time.monotonic() + within
    while Path(f"/proc/{pid}").exists():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def fake(folder: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Has a shell script run in place of torchrun, which takes seconds to start; returns the file of its child's id."""
    pids, script = folder / "pids", folder / "torchrun"
    script.write_text(f"#!/bin/sh\n{text.format(pids=pids)}\n", encoding="utf-8")
    script.chmod(0o755)
    monkeypatch.setattr(torchrun, "torchrun_path", lambda: str(script))
    return pids


def test_nothing_is_left_of_a_job_that_is_too_slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pids = fake(tmp_path, STUBBORN + "echo still at it; sleep 600", monkeypatch)
    with Torchrun(Job(script=["train.py"]), meeting="", log=tmp_path / "output") as agent:
        pid = written(pids)
        with pytest.raises(JobTimeout, match=r"(?s)torchrun of train.py has not ended within 0.1 s.*still at it"):
            agent.wait(0.1)
        assert not Path(f"/proc/{pid}").exists()
        assert not Path(f"/proc/{agent.pid}").exists()


def test_nothing_is_left_of_a_job_that_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pids = fake(tmp_path, STUBBORN + "while ! [ -s {pids} ]; do sleep 0.01; done", monkeypatch)
    with Torchrun(Job(script=["train.py"]), meeting="", log=tmp_path / "output") as agent:
        agent.wait()
        assert not Path(f"/proc/{written(pids)}").exists()


def test_nothing_is_left_if_pytest_is_killed(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    guard = [sys.executable, "-I", "-S", torchrun.__file__.replace("torchrun.py", "guard.py")]
    code = "import subprocess, sys, time; p = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE); time.sleep(600)"
    command = [sys.executable, "-S", "-c", code, *guard, "sh", "-c", STUBBORN.format(pids=pids) + "sleep 600"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as parent:
        pid = written(pids)
        os.kill(parent.pid, signal.SIGKILL)
    assert gone(pid)


def test_an_agent_that_a_signal_ends_has_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake(tmp_path, "kill -SEGV $$", monkeypatch)
    told = r"torchrun of train.py ended with status 139 instead of 0"
    with (
        Torchrun(Job(script=["train.py"]), meeting="", log=tmp_path / "output") as agent,
        pytest.raises(JobFailed, match=told),
    ):
        agent.wait()


def test_waiting_for_what_never_happens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake(tmp_path, "sleep 0.5", monkeypatch)
    with Torchrun(Job(script=["train.py"]), meeting="", log=tmp_path / "output") as agent:
        with pytest.raises(JobTimeout, match=r"torchrun of train.py runs, but not one step within 0.1 s"):
            agent.wait_until(lambda: False, "one step", timeout=0.1)
        with pytest.raises(JobFailed, match=r"torchrun of train.py ended before one step"):
            agent.wait_until(lambda: False, "one step")


def test_torchrun_that_is_missing(tmp_path: Path) -> None:
    python = str(tmp_path / "python")
    told = rf"torchrun is neither beside {python} nor on PATH \(/nowhere\): .* {python} -m pip install torch, or add"
    with pytest.raises(TorchrunMissing, match=told):
        torchrun_path("/nowhere", python)
    with pytest.raises(TorchrunMissing, match="which is empty"):
        torchrun_path("", python)
    (tmp_path / "torchrun").touch(0o755)
    assert torchrun_path("", python) == str(tmp_path / "torchrun")


def test_a_port_that_is_taken() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        told = rf"port {port} of 127.0.0.1 is taken, .* pass port 0 .* ss -ltnp 'sport = :{port}'"
        with pytest.raises(PortTaken, match=told), meeting_place(port):
            pass
    with meeting_place() as first, meeting_place() as second:
        assert first != second
        with pytest.raises(PortTaken), meeting_place(int(first.rpartition(":")[2])):
            pass


def test_more_ranks_than_gpus(tmp_path: Path) -> None:
    told = r"the job has 3 ranks on this machine, a GPU for each, but 2 are visible: ask for ranks=2, or lease more"
    with pytest.raises(TooFewGpus, match=told):
        Torchrun(Job(script=["train.py"], ranks=3), meeting="", log=tmp_path / "output", gpus="GPU-a,GPU-b")
