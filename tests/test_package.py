"""The public names, the versions of other packages, and what is not loaded."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

import pytest_gpuperf
from tests.whole_run import environment

OF_FEATURES = ["Parity", "ProfileWarning", "census", "on_ranks", "parity_record", "watch"]


@pytest.mark.parametrize("name", [*pytest_gpuperf.__all__, *OF_FEATURES])
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(pytest_gpuperf, name) is not None


def test_the_version_is_the_distributions() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+\S*", pytest_gpuperf.__version__)


def test_another_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"^module 'pytest_gpuperf' has no attribute 'Speed'$"):
        pytest_gpuperf.Speed  # noqa: B018


ROOT = Path(__file__).parents[1]
TOOLS = {
    "axe-playwright-python",
    "furo",
    "import-linter",
    "mypy",
    "myst-parser",
    "playwright",
    "pre-commit",
    "ruff",
    "sphinx",
    "zizmor",
}  # they look at the code, and run in one version alone


def pins(file: str) -> dict[str, Version]:
    lines = [line for line in (ROOT / file).read_text().splitlines() if line and not line.startswith("#")]
    return {name: Version(version) for name, version in (line.split("==") for line in lines)}


def minimums() -> dict[str, Version]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = [Requirement(text) for text in (*project["dependencies"], *project["optional-dependencies"]["dev"])]
    return {one.name: Version(str(one.specifier).removeprefix(">=")) for one in needed}


def test_the_oldest_versions_that_are_tested_are_the_oldest_that_can_be_installed() -> None:
    tested = {name: version for name, version in minimums().items() if name not in TOOLS}
    assert pins("constraints-oldest.txt") == tested


def test_each_package_is_pinned() -> None:
    pinned = pins("constraints.txt")
    assert pinned.keys() == minimums().keys()
    assert all(pinned[name] >= version for name, version in minimums().items())


PLAIN = """
import pytest

def test_plain(): pass

@pytest.mark.ranks(2)
def test_speed(perf): perf.check(time=1.0)
"""


@pytest.mark.parametrize(("option", "expected"), [("--help", "--update-baselines"), ("-kplain", "1 passed")])
def test_help_and_runs_without_perf_tests_do_not_load_the_reader_of_baselines(
    tmp_path: Path, option: str, expected: str
) -> None:
    (tmp_path / "test_it.py").write_text(PLAIN)
    (tmp_path / "conftest.py").write_text(
        "import sys\ndef pytest_unconfigure(config): print('loaded', 'pydantic' in sys.modules)"
    )
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", option]
    done = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=True)
    assert expected in done.stdout
    assert "loaded False" in done.stdout


LIBRARIES = ["pydantic", "torch", "pytest"]
ROOMS = [f"pytest_gpuperf.{room}" for room in ("verdicts", "report", "run", "hardware")]


@pytest.mark.parametrize(("room", "others"), [("baselines", LIBRARIES + ROOMS), ("verdicts", LIBRARIES)])
def test_a_room_loads_no_other_and_no_reader_before_it_reads(room: str, others: list[str]) -> None:
    folder = Path(pytest_gpuperf.__file__).parent / room
    modules = [f"pytest_gpuperf.{room}.{path.stem}" for path in folder.glob("[!_]*.py")]
    source = f"import sys, {', '.join(modules)}; print([name for name in {others} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", source], env=environment(), capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_every_public_name_is_on_the_page_of_the_interface() -> None:
    public = {*pytest_gpuperf.__all__, *OF_FEATURES}
    page = (ROOT / "docs" / "reference" / "api.md").read_text()
    missing = {name for name in public if not re.search(rf"^\.\. auto\w+:: pytest_gpuperf\..*\.{name}$", page, re.M)}
    assert missing == {"KiB", "MiB", "GiB"}  # numbers
