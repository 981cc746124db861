"""Arms as processes: what becomes of tests that only one code has, and of processes that end as they should not."""

import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from pytest_gpuperf.features.racing.arms.arm import Measured
from pytest_gpuperf.features.racing.arms.arms import Arms
from pytest_gpuperf.repository import CannotRace
from tests.arms.checkouts import RANKLESS, blueprint, commit, git, write
from tests.ranks.processes import DEADLINE, survivors
from tests.whole_run import ROOT

HEAD = """
import importlib.util, os, sys, time
import pytest
from pytest_gpuperf import Metric
from pytest_gpuperf.figures.conditions import Gate, Tripped
pytestmark = pytest.mark.ranks(2)

def seconds(value, **more):
    return Metric(value, "s", "lower", **more)
"""
OLD = (
    HEAD
    + """
def test_same(perf): perf.check(time=seconds(1.0))
def test_other_figures(perf): perf.check(time=seconds(1.0), gone=seconds(3.0))
def test_other_body(perf): perf.check(time=seconds(1.0))
def test_raises(perf): raise ValueError("the old one cannot")
def test_skips(perf): pytest.skip("the old one will not")
def test_checks_nothing(perf): pass
def test_unfit(perf): perf.check(time=seconds(1.0, invalid=(Tripped("GPU-1", Gate.POWER_BRAKE),)))
def test_too_good(perf): perf.check(time=seconds(1.0, limit=2.0))
def test_no_perf_test(ranks): pass
"""
)
PRESENT = (
    HEAD
    + """
def test_same(perf): perf.check(time=seconds(2.0))
def test_other_figures(perf): perf.check(time=seconds(2.0), new=seconds(4.0))
def test_other_body(perf): perf.check(time=seconds(2.0 * 1))
def test_raises(perf): perf.check(time=seconds(2.0))
def test_skips(perf): perf.check(time=seconds(2.0))
def test_checks_nothing(perf): perf.check(time=seconds(2.0))
def test_unfit(perf): perf.check(time=seconds(2.0))
def test_too_good(perf): perf.check(time=seconds(2.0))
def test_no_perf_test(perf): perf.check(time=seconds(2.0))
def test_new(perf): perf.check(time=seconds(2.0))
"""
)
NEW_FILE = HEAD + "def test_it(perf): perf.check(time=seconds(2.0))\n"
PROBLEMS = {
    "test_it.py::test_raises[2ranks]": "it failed in its call: ",
    "test_it.py::test_skips[2ranks]": "it was skipped in its call: the old one will not",
    "test_it.py::test_checks_nothing[2ranks]": "it failed in its call: the perf test checked no metric",
    "test_it.py::test_unfit[2ranks]": "it failed in its call: time 1.000 s: the machine was not fit",
    "test_it.py::test_too_good[2ranks]": "it failed in its call: time ",
    "test_it.py::test_no_perf_test[2ranks]": "{name} has the test, and it is no perf test there",
    "test_it.py::test_new[2ranks]": "{name} has no such test",
    "test_new.py::test_it[2ranks]": "{name} has no such test: there is no file ",
    "test_mended.py::test_it[2ranks]": "test_mended.py could not be collected: ",
}
SHARED = [f"test_it.py::test_{name}[2ranks]" for name in ("same", "other_figures", "other_body")]


@pytest.fixture(scope="module")
def environ() -> Iterator[pytest.MonkeyPatch]:
    """In which arms find the fake GPUs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        yield patch


@pytest.fixture(scope="module")
def race(
    tmp_path_factory: pytest.TempPathFactory, environ: pytest.MonkeyPatch
) -> tuple[str, list[Mapping[str, Measured]]]:
    """The old arm's name, and what it and the present one came to in a launch each."""
    folder = tmp_path_factory.mktemp("race") / "repository"
    commit(folder, {"conftest.py": RANKLESS, "test_it.py": OLD, "test_mended.py": "import nothing_of_this_name"})
    write(folder, {"test_it.py": PRESENT, "test_new.py": NEW_FILE, "test_mended.py": NEW_FILE})
    tests = [*SHARED, *PROBLEMS]
    with Arms(blueprint(folder), tests) as arms:
        old, present = arms.of("HEAD"), arms.present()
        old.start()
        present.start()
        return old.name, [arm.launch(tests, 60) for arm in (old, present)]


def test_a_test_that_both_have_has_figures_of_both(race: tuple[str, list[Mapping[str, Measured]]]) -> None:
    _, (old, present) = race
    assert [one[SHARED[0]].metrics["time"].value for one in (old, present)] == [1.0, 2.0]
    assert [sorted(one[SHARED[1]].metrics) for one in (old, present)] == [["gone", "time"], ["new", "time"]]
    assert old[SHARED[0]].software == present[SHARED[0]].software
    assert {"torch": "2.13.0", "driver": "570.86"}.items() <= old[SHARED[0]].software.items()


def test_a_body_that_is_another_has_another_hash(race: tuple[str, list[Mapping[str, Measured]]]) -> None:
    _, (old, present) = race
    assert all(one[SHARED[2]].body_hash for one in (old, present))
    assert old[SHARED[2]].body_hash != present[SHARED[2]].body_hash


@pytest.mark.parametrize("test", PROBLEMS)
def test_a_test_that_one_of_them_cannot_run_says_why_and_stops_no_other(
    race: tuple[str, list[Mapping[str, Measured]]], test: str
) -> None:
    name, (old, present) = race
    assert old[test].problem.startswith(PROBLEMS[test].format(name=name))
    assert not old[test].metrics
    assert present[test].problem == ""
    assert present[test].metrics["time"].value == 2.0


def test_an_exceptions_text_is_in_the_problem(race: tuple[str, list[Mapping[str, Measured]]]) -> None:
    assert "the old one cannot" in race[1][0]["test_it.py::test_raises[2ranks]"].problem
    assert "nothing_of_this_name" in race[1][0]["test_mended.py::test_it[2ranks]"].problem


ODD = (
    HEAD
    + """
def test_same(perf): perf.check(time=seconds(1.0))
def test_hangs(perf): time.sleep(100)
def test_exits(perf): pytest.exit("the old one has enough")
def test_dies(perf): os._exit(3)
def test_prints_much(perf, capfd):
    with capfd.disabled():
        for number in range(1000): os.write(2, b"line of number %d\\n" % number)
        os._exit(3)
def test_loads_the_present_file(perf):
    spec = importlib.util.spec_from_file_location("stray", "REPOSITORY/stray.py")
    sys.modules["stray"] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    perf.check(time=seconds(1.0))
"""
)
SAME = "test_it.py::test_same[2ranks]"


@pytest.fixture
def odd(tmp_path: Path, environ: pytest.MonkeyPatch) -> Path:
    """A repository with tests that end in no figures."""
    folder = tmp_path / "repository"
    files = {"conftest.py": RANKLESS, "test_it.py": ODD.replace("REPOSITORY", str(folder)), "stray.py": ""}
    commit(folder, files)
    return folder


def worktrees(folder: Path) -> list[str]:
    return git(folder, "worktree", "list", "--porcelain").split("\n\n")


@pytest.mark.parametrize(
    ("name", "limit", "message"),
    [
        ("hangs", 0.5, r"^the old code \(\w+\) took more than 0.5 s for launching 1 test: a test hangs"),
        (
            "exits",
            60,
            r"(?s)^the old code \(\w+\): its pytest ended with exit code 2 while launching 1 test: .*enough",
        ),
        (
            "prints_much",
            60,
            r"(?s)exit code 3 while .*; it printed last:\nline of number \d+\n.{1000,}\nline of number 999$",
        ),
        ("dies", 60, r"^the old code \(\w+\): its pytest ended with exit code 3 while launching 1 test: "),
        ("loads_the_present_file", 60, r"^void: rank 0 loaded \S+/repository/stray.py where the old code \(\w+\) ran"),
    ],
)
def test_a_race_that_cannot_go_on_says_why(odd: Path, name: str, limit: float, message: str) -> None:
    test = f"test_it.py::test_{name}[2ranks]"
    with Arms(blueprint(odd), [test]) as arms:
        arm = arms.of("HEAD")
        arm.ready()
        pid = arm.pid
        with pytest.raises(CannotRace, match=message):
            arm.launch([test], limit)
        assert pid is not None
        assert not Path(f"/proc/{pid}").exists()
        with pytest.raises(CannotRace, match=r"its process was ended before: open the arm anew$"):
            arm.launch([test], limit)
        assert len(worktrees(odd)) == 2
    assert len(worktrees(odd)) == 1


def test_what_the_old_code_may_not_the_present_may(odd: Path) -> None:
    test = "test_it.py::test_loads_the_present_file[2ranks]"
    with Arms(blueprint(odd), [test]) as arms:
        assert arms.present().launch([test], 60)[test].metrics


CONTROLLER = """
import signal, sys
from pathlib import Path
from pytest_gpuperf.features.racing.arms.arms import Arms
from tests.arms.checkouts import blueprint

# A shell that starts a run in the background has it ignore this signal.
signal.signal(signal.SIGINT, signal.default_int_handler)
test = "test_it.py::test_hangs[2ranks]"
with Arms(blueprint(Path(sys.argv[1])), [test]) as arms:
    arm = arms.of("HEAD")
    arm.ready()
    print(arm.pid, flush=True)
    arm.launch([test], 60)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_arm_ends_with_its_controller_and_its_worktree_at_once_or_with_the_next_race(
    odd: Path, tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    monkeypatch.setattr("tempfile.tempdir", None)
    command = [sys.executable, "-c", CONTROLLER, str(odd)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as controller:
        assert controller.stdout is not None
        pid = controller.stdout.readline().strip()
        controller.send_signal(number)
        controller.communicate(timeout=DEADLINE)
    assert survivors([int(pid)]) == []
    if number == signal.SIGKILL:
        assert len(worktrees(odd)) == 2
        with Arms(blueprint(odd), [SAME]) as arms:
            arms.of("HEAD")
    assert len(worktrees(odd)) == 1
    assert list((tmp_path / "temporary").glob("gpuperf-race-*")) == []
