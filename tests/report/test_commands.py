"""The commands that reports print can be typed where pytest was started."""

import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_gpuperf.report.commands import Commands
from tests.fake_gpus import without_ranks
from tests.whole_run import run_pytest, write

ROOT = Path("/here/there")


@pytest.mark.parametrize(
    ("directory", "expected"),
    [
        ("/here/there", "tests/test_it.py::test_a[2ranks]"),
        ("/here/there/tests", "test_it.py::test_a[2ranks]"),
        ("/here/there/other", "../tests/test_it.py::test_a[2ranks]"),
        ("/here", "there/tests/test_it.py::test_a[2ranks]"),
    ],
)
def test_a_test_is_named_from_where_pytest_was_started(directory: str, expected: str) -> None:
    commands = Commands(ROOT, Path(directory), gpus=2)
    identity = "tests/test_it.py::test_a[2ranks]"
    assert commands.run(identity, ROOT / "tests/test_it.py") == f'pytest "{expected}" --gpus 2'
    assert commands.record(identity) == f'pytest "{expected}" --gpus 2 --update-baselines --reason "why"'


def test_a_file_outside_of_the_root_is_named_by_its_path() -> None:
    commands = Commands(ROOT, ROOT, gpus=0)
    assert commands.run("::test_a", Path("/here/else/test_it.py")) == 'pytest "../else/test_it.py::test_a"'
    assert commands.run("::test_a") == 'pytest "::test_a"'


def test_a_bisection_names_the_good_commit_and_what_builds_the_others() -> None:
    commands = Commands(ROOT, ROOT, gpus=2, bisects=True)
    run = 'pytest "test_it.py::test_a[2ranks]" --gpus 2'
    assert commands.bisect("test_it.py::test_a[2ranks]", "7ba55cceb3f6") == f"{run} --bisect=7ba55cceb3f6"
    built = replace(commands, gpus=0, build="make all").bisect("test_it.py::test_a", "HEAD~2")
    assert built == 'pytest "test_it.py::test_a" --bisect=\'HEAD~2\' --against-build="make all"'
    assert replace(commands, bisects=False).bisect("test_it.py::test_a", "HEAD~2") == ""


@pytest.mark.parametrize("good", ["HEAD", "HEAD~1", "HEAD^", "@~"])
def test_a_bisection_with_one_commit_is_not_offered(good: str) -> None:
    assert Commands(ROOT, ROOT, gpus=2, bisects=True).bisect("test_it.py::test_a", good) == ""


def test_a_smoke_run_is_repeated_as_one() -> None:
    assert Commands(ROOT, ROOT, gpus=0, smoke=True).run("test_it.py::test_a") == 'pytest "test_it.py::test_a" --smoke'


@pytest.mark.parametrize("parameter", ["$(touch x)", "`id`", 'a"b', "a\\b", "a!b"])
def test_a_shell_finds_nothing_to_do_in_a_parameter(parameter: str) -> None:
    identity = f"test_it.py::test_a[{parameter}]"
    assert shlex.split(Commands(ROOT, ROOT, gpus=0).run(identity)) == ["pytest", identity]
    assert Commands(ROOT, ROOT, gpus=0).run(identity) == f"pytest '{identity}'"


def test_a_recording_goes_to_the_folder_that_the_run_named() -> None:
    command = Commands(ROOT, ROOT, gpus=2, baselines="of $ci").record("test_it.py::test_a")
    assert command == ('pytest "test_it.py::test_a" --gpus 2 --update-baselines --baselines \'of $ci\' --reason "why"')


@pytest.mark.parametrize(
    ("files", "named"),
    [
        (["tests/b.py", "tests/a.py", "tests/b.py"], '"tests/a.py" "tests/b.py"'),
        (["tests/a.py", "tests/b.py", "tests/c.py", "tests/x/d.py"], '"tests"'),
        (["a/a.py", "a/b.py", "a/c.py", "b/d.py"], '"."'),
        (["a.py", "b.py", "c.py", "d.py"], '"."'),
    ],
)
def test_a_recording_of_many_tests_names_their_files_or_their_folder(files: list[str], named: str) -> None:
    command = Commands(ROOT, ROOT, gpus=2).record_all([f"{file}::test_{n}" for n, file in enumerate(files)])
    assert command == f'pytest {named} -m perf --gpus 2 --update-baselines --reason "why"'


def test_a_recording_may_add_launches() -> None:
    command = Commands(ROOT, ROOT, gpus=8).record("test_it.py::test_a", "--launches=7", mode="append")
    assert command == 'pytest "test_it.py::test_a" --gpus 8 --update-baselines=append --launches=7 --reason "why"'


def test_a_recording_says_what_it_accepts() -> None:
    command = Commands(ROOT, ROOT, gpus=8).record("test_it.py::test_a", "--accept-regression")
    assert command == 'pytest "test_it.py::test_a" --gpus 8 --update-baselines --accept-regression --reason "why"'


def test_the_command_in_a_report_is_of_this_run(tmp_path: Path) -> None:
    """It names the folder in which pytest was started, and the options that the test needs."""
    folder = write(
        tmp_path,
        {
            "pytest.ini": "[pytest]\n",
            "tests/test_it.py": """
import pytest

def failing(ctx):
    raise ValueError("this")

@pytest.mark.ranks(2)
def test_speed(perf):
    perf.measure(failing)
""",
        },
    )
    run = run_pytest(folder / "tests", "--smoke")
    assert 'pytest "test_it.py::test_speed[2ranks]" --smoke' in run.result.outlines


@pytest.mark.usefixtures("eight_gpus")
def test_the_command_in_a_verdict_names_the_folder_of_baselines(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_ranks(monkeypatch)
    pytester.makepyfile(
        test_it="""
import pytest
from pytest_gpuperf import Metric

@pytest.mark.ranks(2)
def test_speed(perf):
    perf.check(time=Metric(1.0, "s", "lower"))
"""
    )
    command = 'pytest "test_it.py::test_speed[2ranks]" --gpus 2 --update-baselines --baselines "of ci" --reason "why"'
    result = pytester.runpytest_inprocess("--gpus=2", "--baselines=of ci", "--strict-baselines")
    assert any(line.endswith(f"record one with: {command}") for line in result.outlines)
