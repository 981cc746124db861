"""Other plugins and ``conftest.py`` files may have options and attributes of the same names as ours."""

import pytest

from pytest_gpuperf.option_names import SHARED
from pytest_gpuperf.parser_internals import list_registered
from tests.fake_gpus import without_ranks
from tests.whole_run import write

NAMES = (*SHARED, "--report", "--profile", "--explain", "--cluster", "--mutate")

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
from pytest_gpuperf import Metric

@pytest.mark.ranks(1)
def test_it(perf):
    perf.check(time=Metric(1.0, "s", "lower"))
"""


@pytest.fixture(autouse=True)
def _no_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test runs no program."""
    without_ranks(monkeypatch)


def run(pytester: pytest.Pytester, conftest: str, *args: str) -> pytest.RunResult:
    write(pytester.path, {"test_it.py": TEST, "theirs.py": THEIRS, "conftest.py": conftest})
    pytester.syspathinsert()
    return pytester.runpytest_inprocess(*args)


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
    pytester: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
    conftest: str,
    args: tuple[str, ...],
    env: dict[str, str],
) -> None:
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    both = run(pytester, conftest, "--smoke=3", "--gpuperf-smoke", *args)
    both.assert_outcomes(passed=1)
    assert "theirs: 3" in both.outlines
    assert "gpuperf: another plugin or conftest.py has --smoke, so ours is --gpuperf-smoke" in both.outlines
    run(pytester, conftest, "--smoke=3", *args).assert_outcomes(skipped=1)


def test_every_shared_name_may_be_another_plugins(pytester: pytest.Pytester) -> None:
    write(pytester.path, {"all_of_them.py": ALL_OF_THEM})
    words = [word for name in NAMES for word in (name, "theirs")]
    found = run(pytester, "", "-p", "all_of_them", *words, "--gpuperf-smoke", "--gpuperf-report=page.html")
    found.assert_outcomes(passed=1)
    for name in NAMES:
        assert f"theirs: {name} theirs" in found.outlines
    assert (pytester.path / "page.html").exists()


def test_a_conftest_may_have_gpus(pytester: pytest.Pytester) -> None:
    conftest = "def pytest_addoption(parser):\n    parser.addoption('--gpus', required=True)\n"
    run(pytester, conftest, "--gpus=0,1", "--smoke").assert_outcomes(passed=1)


def test_without_others_the_short_names_are_ours(pytester: pytest.Pytester) -> None:
    found = run(pytester, "", "--smoke", "--gpus", "0")
    found.assert_outcomes(passed=1)
    assert "another plugin" not in found.stdout.str()


def test_the_value_of_a_short_name_is_not_taken_for_a_file(pytester: pytest.Pytester) -> None:
    # pytest loads the conftest.py files of testpaths first, if the command line names no file.
    conftest = "def pytest_addoption(parser):\n    parser.addoption('--mine')\n"
    files = {"pytest.ini": "[pytest]\ntestpaths = sub\n", "sub/test_it.py": TEST, "sub/conftest.py": conftest}
    write(pytester.path, files)
    pytester.runpytest_inprocess("--gpus", "0", "--smoke", "--mine=1").assert_outcomes(passed=1)


def test_all_our_attributes_have_a_prefix(pytester: pytest.Pytester) -> None:
    parser = pytest.Parser(_ispytest=True)
    assert list_registered(parser) == {}
    parser.addoption("--one", dest="first")
    parser.getgroup("group").addoption("--two", action="store_true")
    assert list_registered(parser) == {"--one": "first", "--two": "two"}
    before = set(vars(pytester.parseconfig("-p", "no:gpuperf").option))
    ours = set(vars(pytester.parseconfig().option)) - before
    assert len(ours) > 20
    assert [name for name in ours if not name.startswith("gpuperf_")] == []
