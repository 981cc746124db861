"""Ctrl-C while tests are imported, here and in the arms of a race: the run ends at once, and says where it was."""

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.arms.checkouts import commit
from tests.ranks.processes import survivors
from tests.whole_run import environment, run_pytest, write

pytestmark = pytest.mark.usefixtures("fresh_python")

SWALLOWS = """
import os, signal, time
try:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(60)
except KeyboardInterrupt:
    pass
time.sleep(60)
"""
INTERRUPTED = """
import os, signal, time

def deeper(depth):
    if depth:
        deeper(depth - 1)
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(60)

deeper(3)
"""
RACING = """
import os, time
from pathlib import Path
import pytest

if os.environ.get("ARM"):
    Path(os.environ["ARM"], f"arm.{os.getpid()}").touch()
    time.sleep(60)
os.environ["ARM"] = str(Path(__file__).parent)

@pytest.mark.ranks(1)
def test_it(perf):
    perf.check(time=perf.configured(samples=6, budget=0.01).measure(lambda ctx: lambda: time.sleep(0.001)).time)
"""


def test_an_interrupt_that_an_import_swallows_is_repeated(tmp_path: Path) -> None:
    write(tmp_path, {"test_it.py": SWALLOWS})
    run = run_pytest(tmp_path, timeout=50)
    assert run.result.ret == pytest.ExitCode.INTERRUPTED, run.text
    assert re.search(r"test_it.py:\d+: KeyboardInterrupt$", run.text, re.M), run.text


@pytest.mark.parametrize("full", [False, True], ids=["brief", "full"])
def test_the_frames_of_an_interrupted_import_are_formatted_only_if_they_are_printed(tmp_path: Path, full: bool) -> None:
    listener = (
        "import pytest\n"
        "def pytest_keyboard_interrupt(excinfo):\n"
        "    print('frames', [entry.name for entry in excinfo.traceback if entry.name == 'deeper'])\n"
    )
    write(tmp_path, {"test_it.py": INTERRUPTED, "conftest.py": listener})
    run = run_pytest(tmp_path, *(["--full-trace"] if full else []))
    assert run.result.ret == pytest.ExitCode.INTERRUPTED, run.text
    found = re.search(r"frames (\[.*\])", run.text)
    assert found is not None, run.text
    assert found[1] == str(["deeper"] * (4 if full else 1))
    assert re.search(r"test_it.py:\d+: KeyboardInterrupt$", run.text, re.M), run.text
    assert ("deeper(depth - 1)" in run.text) is full


def test_ctrl_c_while_arms_import_leaves_nothing(tmp_path: Path) -> None:
    folder, temporary = tmp_path / "repository", tmp_path / "tmp"
    commit(folder, {"test_it.py": RACING, "pytest.ini": "[pytest]\n", ".gitignore": ".leases\n__pycache__\n"})
    temporary.mkdir()
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-o", "gpuperf_leases=.leases", "--against=HEAD"],
        cwd=folder,
        env=environment(TMPDIR=str(temporary)),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    deadline = time.monotonic() + 60
    while len(list(folder.glob("arm.*"))) < 2:
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.01)
    arms = [int(file.suffix[1:]) for file in folder.glob("arm.*")]
    process.send_signal(signal.SIGINT)
    printed, _ = process.communicate(timeout=60)
    assert process.returncode == pytest.ExitCode.INTERRUPTED, printed
    assert survivors(arms, within=0.0) == []
    assert list(temporary.glob("gpuperf-race-*")) == []
