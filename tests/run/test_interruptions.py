"""What ends a test from outside: it is told first where each rank was."""

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_gpuperf.run.interruptions import Interruptions, Terminated
from tests.ranks.processes import descendants, survivors
from tests.whole_run import environment, run_pytest, write

TOLD_WITHIN = 1.0  # seconds

TESTS = """
import threading
from pathlib import Path
import pytest, torch, torch.distributed as dist

HERE = Path(__file__).parent

@pytest.mark.ranks(2)
def test_hangs(ranks):
    def program(ctx, here):
        (here / f"begun.{ctx.rank}").touch()
        if ctx.rank == 1:
            try:
                raise ValueError("bad sample")
            except ValueError:
                threading.Event().wait()
        dist.all_reduce(torch.ones(4))

    ranks.run(program, HERE)

@pytest.mark.ranks(2)
def test_next(ranks):
    assert ranks.run(lambda ctx: ctx.rank) == [0, 1]
"""
STORY = [
    "ranks 0, 1 of 2 (gloo) had not returned from test_it:test_hangs.<locals>.program when this came",
    "rank 1 is handling ValueError: bad sample, raised at {file}:14 in program",
    "rank 0 is in all_reduce (torch/distributed/distributed_c10d.py:",
    "rank 1 is in wait (threading.py:",
    "rank 1 never issued all_reduce Float[4] (collective 1 of the program), which rank 0 did",
]


def assert_told(printed: str, folder: Path) -> None:
    missing = [line for line in STORY if line.format(file=folder / "test_it.py") not in printed]
    assert missing == [], printed


@pytest.mark.parametrize(
    ("number", "named"), [(signal.SIGINT, "KeyboardInterrupt"), (signal.SIGTERM, "Terminated: got SIGTERM")]
)
def test_a_signal_is_told_where_the_ranks_were(tmp_path: Path, number: signal.Signals, named: str) -> None:
    took = [told_after(write(tmp_path / "first", {"test_it.py": TESTS}), number, named)]
    if took[0] > TOLD_WITHIN:  # 0.2 s on a quiet machine; one that is busy with other tests gets another try
        took.append(told_after(write(tmp_path / "second", {"test_it.py": TESTS}), number, named))
    assert min(took) <= TOLD_WITHIN


def told_after(folder: Path, number: signal.Signals, named: str) -> float:
    """Seconds from the signal to the story."""
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "pytest", "-p", "no:cacheprovider", "-o", f"gpuperf_leases={folder / '.leases'}"],
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # background jobs of a shell ignore it
    )
    assert process.stdout is not None
    try:
        deadline = time.monotonic() + 60
        while not all((folder / f"begun.{rank}").exists() for rank in range(2)):
            assert process.poll() is None, process.communicate()[0]
            assert time.monotonic() < deadline
            time.sleep(0.005)  # no event tells of another process's progress
        time.sleep(0.2)  # to come into the collective
        started = descendants(process.pid)
        began = time.monotonic()
        process.send_signal(number)
        printed, took = "", 0.0
        for line in process.stdout:
            printed += line
            if STORY[-1] in line:
                took = time.monotonic() - began
        process.wait(60)
    finally:
        process.kill()
        process.communicate()
    assert_told(printed, folder)
    assert f"gpuperf: test_it.py::test_hangs[2ranks] was interrupted by {named}" in printed
    assert "--- stack of rank 1 ---" in printed
    assert "no tests ran in" in printed
    assert printed.count(STORY[-1]) == 1
    assert process.returncode == pytest.ExitCode.INTERRUPTED
    assert survivors(started, within=2.0) == []
    return took


@pytest.mark.parametrize("method", ["signal", "thread"])
def test_pytest_timeout_tells_where_the_ranks_were(tmp_path: Path, method: str) -> None:
    source = TESTS.replace(
        "@pytest.mark.ranks(2)\ndef test_h",
        f"@pytest.mark.timeout(2, method={method!r}, func_only=True)\n@pytest.mark.ranks(2)\ndef test_h",
    )
    folder = write(tmp_path, {"test_it.py": source})
    run = run_pytest(folder, "-p", "pytest_timeout", "-v")
    assert run.outcomes == {"test_hangs[2ranks]": "FAILED", "test_next[2ranks]": "PASSED"}
    report = run.report("test_hangs[2ranks]")
    assert "Timeout (>2.0s) from pytest-timeout." in report
    assert_told(report.replace(":15 in program", ":14 in program"), folder)
    assert "stack of rank 1" in report
    assert "selectors.py" not in report.partition("Captured")[0]  # where our own wait stood


def test_without_ranks_that_run_the_thread_method_is_the_plugins_own(tmp_path: Path) -> None:
    source = "import time, pytest\n\n@pytest.mark.timeout(1, method='thread')\ndef test_it():\n    time.sleep(60)\n"
    run = run_pytest(write(tmp_path, {"test_it.py": source}), "-p", "pytest_timeout")
    assert run.result.ret == 1
    assert "Stack of MainThread" in run.text
    assert " failed" not in run.text  # the process ended there and then


@pytest.fixture
def unhandled() -> Iterator[None]:
    """SIGTERM as a process begins with it: a library that another test imported, such as Ray, may handle it."""
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.usefixtures("unhandled")
def test_sigterm_where_no_rank_runs_does_what_it_did() -> None:
    with Interruptions().admit():
        assert signal.getsignal(signal.SIGTERM) != signal.SIG_DFL
        with pytest.raises(Terminated, match="got SIGTERM"):
            signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_a_handler_of_the_users_stays() -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    try:
        interruptions = Interruptions()
        with interruptions.admit():
            signal.raise_signal(signal.SIGTERM)
            assert not interruptions.interrupt(pytest.fail)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert heard == [signal.SIGTERM]


def test_another_thread_cannot_admit_it_and_is_not_interrupted() -> None:
    interruptions, told = Interruptions(), []

    def wait() -> None:
        with interruptions.admit():
            told.append(interruptions.interrupt(pytest.fail))

    thread = threading.Thread(target=wait)
    thread.start()
    thread.join()
    assert told == [False]
