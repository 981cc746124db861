"""The public names, and the versions of other packages."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

import pytest_gpuperf


@pytest.mark.parametrize("name", pytest_gpuperf.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(pytest_gpuperf, name) is not None


def test_the_version_is_the_distributions() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+\S*", pytest_gpuperf.__version__)


def test_another_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"^module 'pytest_gpuperf' has no attribute 'Speed'$"):
        pytest_gpuperf.Speed  # noqa: B018


ROOT = Path(__file__).parents[1]
TOOLS = {"import-linter", "mypy", "pre-commit", "ruff"}  # they look at the code, and run in one version alone


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
