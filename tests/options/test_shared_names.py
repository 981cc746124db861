"""Other plugins and ``conftest.py`` files may have options and attributes of the same names as ours."""

from pathlib import Path

import pytest

from pytest_gpuperf.options import SHARED
from pytest_gpuperf.parser_internals import registered
from tests.whole_run import WholeRun, run_pytest, write

NAMES = (*SHARED, "--report", "--profile")

# As pytest-smoke has it.
THEIRS = """
def pytest_addoption(parser):
    parser.getgroup("smoke").addoption("--smoke", metavar="N", nargs="?", const=1, type=int, default=False)

def pytest_report_header(config):
    return f"theirs: {config.option.smoke}"
"""
# All of them, and each without `dest`, so that pytest makes it of the name.
ALL_OF_THEM = f"""
def pytest_addoption(parser):
    for name in {NAMES}:
        parser.addoption(name, default="nothing")

def pytest_report_header(config):
    return [f"theirs: {{name}} {{config.getoption(name)}}" for name in {NAMES}]
"""
TEST = """
import pytest

@pytest.mark.ranks(1)
def test_it(perf):
    perf.check(time=perf.measure(lambda ctx: lambda: None).time)
"""


def run(folder: Path, conftest: str, *args: str, env: dict[str, str] | None = None) -> WholeRun:
    write(folder, {"test_it.py": TEST, "theirs.py": THEIRS, "conftest.py": conftest, "pytest.ini": "[pytest]\n"})
    return run_pytest(folder, *args, env={"PYTHONPATH": f"{folder}:{Path(__file__).parents[2]}", **(env or {})})


@pytest.mark.parametrize(
    ("conftest", "args", "env"),
    [
        ("", ("-p", "theirs"), {}),  # it comes before all that is installed
        ("", (), {"PYTEST_PLUGINS": "theirs"}),  # after it
        (THEIRS, (), {}),
    ],
    ids=["before", "after", "conftest"],
)
def test_a_plugin_that_has_smoke_keeps_it(
    tmp_path: Path, conftest: str, args: tuple[str, ...], env: dict[str, str]
) -> None:
    both = run(tmp_path, conftest, "--smoke=3", "--gpuperf-smoke", *args, env=env)
    assert both.outcomes == {"test_it[1rank]": "PASSED"}, both.text
    assert "theirs: 3" in both.result.outlines
    assert "gpuperf: another plugin or conftest.py has --smoke, so ours is --gpuperf-smoke" in both.result.outlines
    alone = run(tmp_path, conftest, "--smoke=3", *args, env=env)
    assert alone.outcomes == {"test_it[1rank]": "SKIPPED"}, alone.text


def test_every_shared_name_may_be_another_plugins(tmp_path: Path) -> None:
    write(tmp_path, {"all_of_them.py": ALL_OF_THEM})
    words = [word for name in NAMES for word in (name, "theirs")]
    found = run(tmp_path, "", "-p", "all_of_them", *words, "--gpuperf-smoke", "--gpuperf-report=page.html")
    assert found.outcomes == {"test_it[1rank]": "PASSED"}, found.text
    for name in NAMES:
        assert f"theirs: {name} theirs" in found.result.outlines
    assert (tmp_path / "page.html").exists()


def test_a_conftest_may_have_gpus(tmp_path: Path) -> None:
    conftest = "def pytest_addoption(parser):\n    parser.addoption('--gpus', required=True)\n"
    found = run(tmp_path, conftest, "--gpus=0,1", "--smoke")
    assert found.outcomes == {"test_it[1rank]": "PASSED"}, found.text


def test_without_others_the_short_names_are_ours(tmp_path: Path) -> None:
    found = run(tmp_path, "", "--smoke", "--gpus", "0")
    assert found.outcomes == {"test_it[1rank]": "PASSED"}, found.text
    assert "another plugin" not in found.text


def test_the_value_of_a_short_name_is_not_taken_for_a_file(tmp_path: Path) -> None:
    # pytest loads the conftest.py files of testpaths first, if the command line names no file.
    write(tmp_path, {"pytest.ini": "[pytest]\ntestpaths = sub\n", "sub/test_it.py": TEST})
    conftest = "def pytest_addoption(parser):\n    parser.addoption('--mine')\n"
    write(tmp_path, {"sub/conftest.py": conftest})
    found = run_pytest(tmp_path, "--gpus", "0", "--smoke", "--mine=1")
    assert found.outcomes == {"test_it[1rank]": "PASSED"}, found.text


def test_all_our_attributes_have_a_prefix(pytester: pytest.Pytester) -> None:
    parser = pytest.Parser(_ispytest=True)
    assert registered(parser) == {}
    parser.addoption("--one", dest="first")
    parser.getgroup("group").addoption("--two", action="store_true")
    assert registered(parser) == {"--one": "first", "--two": "two"}
    before = set(vars(pytester.parseconfig("-p", "no:gpuperf").option))
    ours = set(vars(pytester.parseconfig().option)) - before
    assert len(ours) > 20
    assert [name for name in ours if not name.startswith("gpuperf_")] == []
