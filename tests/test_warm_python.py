"""Forked runs and fresh ones: the same outcomes, and what differs."""

import contextlib
import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, cast

import pytest

from tests.warm_python import FRESH, ForkedPopen
from tests.whole_run import environment, run_pytest, write

_TESTS = {
    "test_it.py": """
import os, random, sys
import pytest
import torch.distributed as dist

@pytest.mark.ranks(2)
def test_ranks(ranks):
    def program(ctx):
        dist.barrier()
        return os.getppid(), ctx.rank
    (parent, _), (other, last) = ranks.run(program)
    assert parent == other != os.getppid() and last == 1

def test_imports():
    print("ours", "pytest_gpuperf.ranks.pool" in sys.modules, "path", sys.path[0], "argv", sys.argv[-1])

def test_failure():
    assert [1, 2] == [1, 3]

@pytest.mark.ranks(2)
def test_end(ranks):
    ranks.run(lambda ctx: os._exit(3) if ctx.rank else dist.barrier())
""",
}


def test_a_forked_run_has_the_outcomes_of_a_fresh_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, _TESTS)
    forked = run_pytest(tmp_path, "test_it.py")
    monkeypatch.setattr(subprocess, "Popen", FRESH)
    fresh = run_pytest(tmp_path, "test_it.py")
    assert forked.outcomes == fresh.outcomes
    assert sorted(forked.outcomes.values()) == ["FAILED", "FAILED", "PASSED", "PASSED"]
    assert forked.result.ret == fresh.result.ret == 1
    assert forked.report("test_failure") == fresh.report("test_failure")
    assert "exited with code 3" in forked.report("test_end[2ranks]")


@pytest.mark.parametrize(
    ("command", "environ", "is_forked"),
    [
        (["-m", "pytest", "--version"], {}, True),
        (["-W", "ignore", "-m", "pytest_gpuperf", "--help"], {}, True),
        (["-m", "pytest", "--version"], {"OMP_NUM_THREADS": "1", "TORCHINDUCTOR_CACHE_DIR": "/tmp/x"}, True),
        (["-m", "pytest", "--version"], {"PYTHONHASHSEED": "5"}, False),
        (["-m", "pytest", "--version"], {"TORCH_LOGS": "all"}, False),
        (["-X", "utf8", "-m", "pytest", "--version"], {}, False),
        (["-c", "print('usage ')"], {}, False),
    ],
)
def test_what_an_interpreter_reads_as_it_starts_wants_a_new_one(
    command: list[str], environ: dict[str, str], is_forked: bool
) -> None:
    whole = [sys.executable, *command]
    environ = {**environment(), **environ}
    process = subprocess.Popen(whole, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    parent = Path(f"/proc/{process.pid}/status").read_text()
    out, _ = process.communicate()
    assert process.returncode == 0
    assert re.search(rb"^(usage|pytest)\b", out)
    assert (f"PPid:\t{os.getpid()}\n" not in parent) == is_forked


def test_a_forked_run_ends_by_a_signal_like_any_other(tmp_path: Path) -> None:
    write(tmp_path, {"test_it.py": "import time\ndef test_it():\n    print('begins', flush=True); time.sleep(60)"})
    command = [sys.executable, "-m", "pytest", "-s", "-p", "no:cacheprovider"]
    with subprocess.Popen(command, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        while b"begins" not in process.stdout.readline():
            pass
        assert process.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.01)
        process.kill()
        assert process.wait(10) == -signal.SIGKILL


def test_a_client_without_file_descriptors_is_told_and_the_next_one_is_served(tmp_path: Path) -> None:
    write(tmp_path, {"test_it.py": "def test_it():\n    pass\n"})
    run_pytest(tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    held = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 40, hard))
        with contextlib.suppress(OSError):
            while True:
                held.append(os.open(os.devnull, os.O_RDONLY))
        os.close(held.pop())  # enough for a connection, not for the request
        with pytest.raises(OSError, match="Too many open files"):
            subprocess.Popen([sys.executable, "-m", "pytest", "--version"], env=environment())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for fd in held:
            os.close(fd)
    assert run_pytest(tmp_path).outcomes == {"test_it": "PASSED"}


def test_a_client_that_a_signal_has_ended_leaves_the_next_one_served(tmp_path: Path) -> None:
    version = [sys.executable, "-m", "pytest", "--version"]
    subprocess.run(version, check=True, timeout=60)
    popen = cast("type[ForkedPopen]", subprocess.Popen)
    flags = {"how": "-m", "what": "pytest", "args": ["--version"], "safe_path": False, "unbuffered": False}
    request: dict[str, Any] = {"flags": {**flags, "warnings": []}, "address": popen.address, "environ": environment()}
    request |= {"cwd": str(tmp_path), "session": False, "inherited": [], "parent": os.getpid()}
    with tempfile.TemporaryFile() as file, open(os.devnull, "r+b") as nothing:
        file.write(json.dumps(request).encode())
        file.seek(0)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
            connection.connect("\0" + popen.address)
            socket.send_fds(connection, [b"fork"], [file.fileno(), *[nothing.fileno()] * 3])
    subprocess.run(version, check=True, timeout=60)
