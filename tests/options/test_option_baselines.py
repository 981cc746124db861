"""``--baselines``: the folder of the files."""

from pathlib import Path

import pytest

from tests.fake_gpus import without_ranks
from tests.options.test_option_update_baselines import KEY, TEST

pytestmark = pytest.mark.usefixtures("eight_gpus")


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    without_ranks(monkeypatch)
    folder = pytester.mkdir("deeper")
    (folder / "test_it.py").write_text(TEST)
    (folder / "figures.txt").write_text("3e11")
    return pytester


def written(project: pytest.Pytester, *options: str) -> list[Path]:
    result = project.runpytest_inprocess("--gpus=2", "--update-baselines", "--reason=x", *options)
    result.assert_outcomes(passed=5)
    return [path.relative_to(project.path) for path in project.path.rglob(f"{KEY}.json")]


def test_by_default_it_is_a_folder_of_the_rootdir(project: pytest.Pytester) -> None:
    assert written(project) == [Path("baselines", f"{KEY}.json")]


def test_the_ini_key_names_it_relative_to_the_rootdir(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.makeini("[pytest]\ngpuperf_baselines = ours/of/old")
    monkeypatch.chdir(project.path / "deeper")
    assert written(project) == [Path("ours", "of", "old", f"{KEY}.json")]


def test_the_option_goes_before_the_ini_key(project: pytest.Pytester) -> None:
    project.makeini("[pytest]\ngpuperf_baselines = ours")
    assert written(project, "--baselines=theirs") == [Path("theirs", f"{KEY}.json")]


def test_the_option_names_it_from_where_the_user_is(project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    project.makeini("[pytest]")
    monkeypatch.chdir(project.path / "deeper")
    assert written(project, "--baselines=theirs") == [Path("deeper", "theirs", f"{KEY}.json")]


def test_an_absolute_folder_is_taken_as_it_is(project: pytest.Pytester) -> None:
    assert written(project, f"--baselines={project.path / 'absolute'}") == [Path("absolute", f"{KEY}.json")]
