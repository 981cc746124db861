"""Entries of a baselines file whose tests are no longer there."""

import json
from collections.abc import Iterable

import pytest

from tests.fake_gpus import without_ranks
from tests.options.test_option_update_baselines import NODE, TEST, baselines, project, record, run

__all__ = ["project"]

pytestmark = pytest.mark.usefixtures("eight_gpus")

OLD = "test_it.py::test_old[2ranks]"
OF_A_CLASS = "test_it.py::TestIt::test_old[2ranks]"
MOVED = "before/test_moved.py::test_speed[2ranks]"


@pytest.fixture(autouse=True)
def _no_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    without_ranks(monkeypatch)


@pytest.fixture
def recorded(project: pytest.Pytester) -> pytest.Pytester:
    project.makepyfile(
        test_it=f"{TEST}\n@pytest.mark.ranks(2)\nclass TestIt:\n    def test_no_perf(self, ranks): ...\n"
    )
    record(project)
    return project


def hold(project: pytest.Pytester, *tests: str) -> None:
    """The file has entries of these tests too."""
    data = json.loads(baselines(project).read_text())
    data["tests"].update(dict.fromkeys(tests, data["tests"][NODE]))
    baselines(project).write_text(json.dumps(data))


RENAME = ", or, if a test was renamed, run: python -m pytest_gpuperf rename OLD NEW"


def told(lines: Iterable[str]) -> list[str]:
    return [line for line in lines if "no longer exist" in line]


def test_a_test_that_its_file_has_no_more_is_told(recorded: pytest.Pytester) -> None:
    hold(recorded, OLD)
    result = run(recorded)
    cure = f'delete its entry under "tests" in {baselines(recorded)}{RENAME}'
    assert told(result.outlines) == [f"the baselines contain 1 test that no longer exists: {OLD}: {cure}"]
    assert result.ret == 0


def test_all_of_them_are_told_and_a_moved_file_too(recorded: pytest.Pytester) -> None:
    hold(recorded, OLD, OF_A_CLASS, MOVED)
    cure = f'delete their entries under "tests" in {baselines(recorded)}{RENAME}'
    names = ", ".join(sorted((OLD, OF_A_CLASS, MOVED)))
    assert told(run(recorded, "-k", "speed").outlines) == [
        f"the baselines contain 3 tests that no longer exist: {names}: {cure}"
    ]


@pytest.mark.parametrize("mode", ["moved", "new", "all", "append"])
def test_a_recording_tells_them_and_leaves_them(recorded: pytest.Pytester, mode: str) -> None:
    hold(recorded, OLD)
    assert len(told(run(recorded, f"--update-baselines={mode}", "--reason=x").outlines)) == 1
    assert OLD in json.loads(baselines(recorded).read_text())["tests"]


def test_the_cure_works(recorded: pytest.Pytester) -> None:
    hold(recorded, OLD)
    data = json.loads(baselines(recorded).read_text())
    del data["tests"][OLD]
    baselines(recorded).write_text(json.dumps(data))
    result = run(recorded)
    result.assert_outcomes(passed=2)
    assert not told(result.outlines)


@pytest.mark.parametrize(
    "selection",
    [(NODE,), ("test_it.py::test_speed",), (NODE, "test_it.py::TestIt"), ("test_other.py",), ("--lf",)],
    ids=["test", "function", "class", "another-file", "last-failed"],
)
def test_of_what_was_not_collected_whole_nothing_is_told(recorded: pytest.Pytester, selection: tuple[str, ...]) -> None:
    recorded.makepyfile(test_other=TEST)
    run(recorded, "-p", "cacheprovider", "--strict-baselines").assert_outcomes(passed=2, failed=1)  # no baseline
    hold(recorded, OLD)
    assert not told(run(recorded, "-p", "cacheprovider", *selection).outlines)


def test_tests_that_are_only_deselected_are_there(recorded: pytest.Pytester) -> None:
    recorded.makepyfile(test_it=TEST + TEST[TEST.index("@pytest") :].replace("test_speed", "test_old"))
    hold(recorded, OLD)
    assert not told(run(recorded, "-k", "speed").outlines)
    assert not told(run(recorded, f"--deselect={OLD}").outlines)


def test_of_files_that_could_not_be_collected_nothing_is_told(recorded: pytest.Pytester) -> None:
    hold(recorded, OLD, OF_A_CLASS, "test_skipped.py::test_old[2ranks]")
    recorded.makepyfile(test_skipped="import pytest\npytest.importorskip('not_installed_anywhere')\n")
    # Its world sizes are not said: the class cannot be collected, and what else it holds is not known.
    recorded.makepyfile(test_it=f"{TEST}\nclass TestIt:\n    def test_new(self, ranks): ...\n")
    result = run(recorded, "--continue-on-collection-errors")
    result.assert_outcomes(passed=1, errors=1, skipped=1)
    assert not told(result.outlines)


REPEATS = """
import pytest

@pytest.fixture
def __pytest_repeat_step_number(request): ...

def pytest_generate_tests(metafunc):
    metafunc.fixturenames.append("__pytest_repeat_step_number")
    metafunc.parametrize("__pytest_repeat_step_number", range(2), indirect=True, ids=["1-2", "2-2"])
"""


def test_where_tests_are_repeated_under_other_names_nothing_is_told(recorded: pytest.Pytester) -> None:
    recorded.makeconftest(REPEATS)
    result = run(recorded, "--strict-baselines")
    result.assert_outcomes(passed=2, failed=2)
    assert not told(result.outlines)


def test_files_are_looked_for_from_the_root(recorded: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded.makepyfile(test_other="")
    hold(recorded, "test_other.py::test_old")
    monkeypatch.chdir(recorded.mkdir("below"))
    result = run(recorded, "--rootdir=..", "../test_it.py")
    result.assert_outcomes(passed=2)
    assert not told(result.outlines)


def test_a_file_that_no_system_could_have_is_gone(recorded: pytest.Pytester) -> None:
    nowhere = f"{'x' * 300}.py::test_it"
    hold(recorded, nowhere)
    assert len(told(run(recorded).outlines)) == 1


def test_files_that_are_elsewhere_are_none_of_another_projects(recorded: pytest.Pytester) -> None:
    data = json.loads(baselines(recorded).read_text())
    data["tests"] = {MOVED: data["tests"][NODE]}
    baselines(recorded).write_text(json.dumps(data))
    assert not told(run(recorded).outlines)


def test_without_baselines_or_perf_tests_nothing_is_told(recorded: pytest.Pytester) -> None:
    hold(recorded, OLD)
    assert not told(run(recorded, "--smoke").outlines)
    assert not told(run(recorded, "-m", "not perf").outlines)
    baselines(recorded).unlink()
    assert not told(run(recorded).outlines)
