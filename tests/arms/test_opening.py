"""Arms that are opened: where their processes run, and what keeps them from it."""

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from pytest_gpuperf.features.racing.arms.arms import Arms
from pytest_gpuperf.features.racing.arms.blueprint import Blueprint
from pytest_gpuperf.repository import CannotRace
from tests.arms.checkouts import RANKLESS, blueprint, commit, write
from tests.whole_run import ROOT, run_pytest

TESTS = """
import os, sys
import beside, generated
import pytest
from pytest_gpuperf import Metric

@pytest.mark.ranks(2)
def test_it(perf, pytestconfig):
    assert os.getcwd() == str(pytestconfig.invocation_params.dir)
    assert pytestconfig.inipath == pytestconfig.rootpath / "pytest.ini"
    assert pytestconfig.getini("gpuperf_timeout") == str(beside.VALUE)
    perf.check(time=Metric(generated.VALUE, "s", "lower"))
"""
IT = "test_it.py::test_it[2ranks]"


def sources(value: float) -> dict[str, str]:
    return {
        "project/pytest.ini": f"[pytest]\ngpuperf_timeout = {value}\nfilterwarnings = error\n",
        "project/conftest.py": RANKLESS,
        "project/test_it.py": TESTS,
        "project/cases/beside.py": f"VALUE = {value}\n",
        ".gitignore": "generated.py",
    }


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository whose tests are in a subfolder and import a file that is made of another."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    commit(tmp_path / "repository", sources(1.0))
    write(tmp_path / "repository", sources(2.0) | {"project/generated.py": "VALUE = 2.0"})
    return tmp_path / "repository"


def opened(folder: Path, *without: str) -> Arms:
    plan = blueprint(folder)
    project = folder / "project"
    return Arms(
        Blueprint(
            rootdir=project,
            inipath=project / "pytest.ini",
            directory=project / "cases",
            directory_on_path=True,
            options=plan.options,
            plugins=(*plan.plugins, *without),
            ini=plan.ini,
        ),
        [IT],
    )


def test_an_arm_runs_at_the_same_places_in_its_own_checkout_which_is_built_first(folder: Path) -> None:
    build = "sed s/1.0/3.0/ project/cases/beside.py > project/generated.py"
    with opened(folder) as arms:
        old, present = arms.of("HEAD", build=build), arms.present()
        old.start()
        present.start()
        results = [arm.launch([IT], 60)[IT] for arm in (old, present)]
        assert [one.problem for one in results] == ["", ""]
        assert [one.metrics["time"].value for one in results] == [3.0, 2.0]
    assert not list(folder.glob("**/.pytest_cache"))


def test_what_is_generated_is_told_to_need_a_build(folder: Path) -> None:
    with opened(folder) as arms:
        problem = arms.of("HEAD").launch([IT], 60)[IT].problem
    assert problem.startswith("test_it.py could not be collected: ")
    assert "pass --against-build COMMAND, which makes it in the worktree" in problem


def test_a_build_that_fails_shows_what_it_printed(folder: Path) -> None:
    message = (
        r"(?s)^--against-build 'echo no compiler; exit 7' failed in \S+/repository: got exit code 7, expected 0: mend "
        r".*\nno compiler$"
    )
    with opened(folder) as arms, pytest.raises(CannotRace, match=message):
        arms.of("HEAD", build="echo no compiler; exit 7")


def test_a_pytest_that_cannot_begin_shows_what_it_printed(folder: Path) -> None:
    commit(folder, {"project/conftest.py": "import nothing_of_this_name"})
    message = r"(?s)^the old code \(\w+\): its pytest ended with exit code 1 while collecting its tests: .*this_name"
    with opened(folder) as arms, pytest.raises(CannotRace, match=message):
        arms.of("HEAD").ready()


def test_strict_settings_of_a_run_without_pytests_cache_are_no_hindrance(folder: Path) -> None:
    write(folder, {"project/pytest.ini": "[pytest]\nstrict_config = true\ngpuperf_timeout = 2.0\n"})
    with opened(folder, "no:cacheprovider") as arms:
        assert arms.present().launch([IT], 60)[IT].problem == ""


def test_one_that_does_not_begin_in_time_is_ended(folder: Path) -> None:
    with opened(folder) as arms:
        arm = arms.present()
        with pytest.raises(
            CannotRace, match=r"^the present code took more than 0.01 s for collecting its tests: .*; it"
        ):
            arm.ready(0.01)


def test_one_that_imports_is_ended_at_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_gpuperf.features.racing.arms.child_arm._CLOSE_TIMEOUT", 300.0)
    begun = folder / "begun"
    slow = f"import time\nopen({str(begun)!r}, 'w').close()\ntime.sleep(600)\n"
    write(folder, {"project/test_it.py": slow})
    with opened(folder) as arms:
        arm = arms.present()
        arm.start()
        until = time.monotonic() + 60
        while not begun.exists():
            assert time.monotonic() < until
            time.sleep(0.01)
        process = arm._process
    assert process is not None
    assert process.returncode == -signal.SIGKILL  # it ends by itself 5 s after its controller has hung up


@pytest.mark.parametrize("python", ["/nowhere/python", str(Path(__file__))])
def test_another_interpreter_must_be_one(folder: Path, python: str) -> None:
    with (
        opened(folder) as arms,
        pytest.raises(CannotRace, match=rf"^the present code with {python}: .*: name a Python interpreter that runs"),
    ):
        arms.present(python).start()


def test_another_interpreter_must_have_pytest(folder: Path, tmp_path: Path) -> None:
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    bare.chmod(0o755)
    with opened(folder) as arms, pytest.raises(CannotRace, match=r"(?s)its pytest ended .*No module named 'pytest'"):
        arms.present(str(bare)).ready()


def test_a_process_that_cannot_be_had_is_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: object, **kwargs: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    with opened(folder) as arms:
        arm = arms.present()
        monkeypatch.setattr("subprocess.Popen", fails)
        with pytest.raises(
            CannotRace, match=r"^the present code: its process cannot be started: got .*: free memory, "
        ):
            arm.start()


RACE = """
from pytest_gpuperf.features.racing.arms.arms import Arms
from pytest_gpuperf.features.racing.arms.blueprint import Blueprint
from pytest_gpuperf.features.racing.arms.child import LINK
from pytest_gpuperf.plugin import SESSION

def pytest_sessionfinish(session):
    if LINK in session.config.stash:
        return
    tests = [item.nodeid for item in session.items]
    with Arms(Blueprint.of(session.config, session.config.stash[SESSION].options), tests) as arms:
        old, present = arms.of("HEAD"), arms.present()
        old.start()
        for arm in (old, present):
            for test, measured in arm.launch(tests, 60).items():
                print(f"{arm.name}: {test}: {[one.value for one in measured.metrics.values()]} {measured.problem}")
"""


def test_a_run_opens_them_with_its_own_settings(folder: Path) -> None:
    write(folder, {"project/pytest.ini": "[pytest]\ngpuperf_timeout = 1.0\naddopts = -x -k it --gpus=2\n"})
    write(folder, {"project/generated.py": "VALUE = 1.0", ".gitignore": ""})
    commit(folder, {"project/cases/beside.py": "VALUE = 1.0", "project/conftest.py": RANKLESS + RACE})
    write(folder, {"project/generated.py": "VALUE = 2.0"})
    command = ["-s", "-c../pytest.ini", "-p", "no:stepwise", "--junitxml=report.xml", f"../{IT}"]
    run = run_pytest(folder / "project/cases", *command, env={"PYTHONSAFEPATH": ""})
    lines = [line for line in run.result.outlines if f": {IT}: " in line]
    assert [line.rpartition(": ")[2] for line in lines] == ["[1.0] ", "[2.0] "], run.text
    assert (folder / "project/cases/report.xml").exists()
    assert not list(folder.glob("**/.pytest_cache"))


def test_an_arm_without_any_of_the_tests_starts_no_process(folder: Path) -> None:
    (folder / "project/test_it.py").unlink()
    with opened(folder) as arms:
        arm = arms.present()
        arm.start()
        arm.ready()
        problem = arm.launch([IT], 60)[IT].problem
        assert problem == f"the present code has no such test: there is no file {folder}/project/test_it.py"
        assert arm.pid is None


def test_variables_of_an_arm_are_set_and_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("NCCL_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("NCCL_ALGO", "Tree")
    monkeypatch.setenv("NCCL_PROTO", "LL")
    monkeypatch.setenv("EMPTY", "")
    with Arms(blueprint(tmp_path), []) as arms:
        as_it_is = arms.present()
        other = arms.present(variables={"NCCL_ALGO": "", "NCCL_PROTO": "Simple", "NCCL_NTHREADS": "64"})
        assert other.name == "the present code with NCCL_ALGO not set, NCCL_PROTO=Simple, NCCL_NTHREADS=64"
        assert as_it_is.name == "the present code"
        of_both = [arm._setting.environ for arm in (as_it_is, other)]
        chosen = [{name: value for name, value in one.items() if name.startswith("NCCL_")} for one in of_both]
        assert chosen == [{"NCCL_ALGO": "Tree", "NCCL_PROTO": "LL"}, {"NCCL_PROTO": "Simple", "NCCL_NTHREADS": "64"}]
        assert [one["EMPTY"] for one in of_both] == ["", ""]
