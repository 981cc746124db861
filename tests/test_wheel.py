"""What is built installs elsewhere: tests of one's own, the suites, and types, without the checkout."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.whole_run import ROOT, environment

pytest.importorskip("setuptools", minversion="77")
BUILD = "import sys; from setuptools import build_meta; build_meta.build_{}(sys.argv[1])"
OF_A_CHECKOUT = {"suites/table.py"}
OWN = """
import pytest_gpuperf
import pytest

@pytest.mark.ranks(2)
def test_own(ranks):
    print(pytest_gpuperf.__file__)
    assert ranks.run(lambda ctx: ctx.rank) == [0, 1]
"""
MADE_UP_GPUS = """
import pytest
from pytest_gpuperf.figures.conditions import FIT
from pytest_gpuperf.figures.timing import RankSamples
from pytest_gpuperf.run.current_ranks import CurrentRanks
from tests import fake_gpus

patch = pytest.MonkeyPatch()
fake_gpus.install(patch, visible=2)
fake_gpus.without_ranks(patch)
samples = RankSamples((2.8e-3, 2.81e-3) * 10, "cuda", False, 1)
patch.setattr(CurrentRanks, "watch_run", lambda self, size, *_: ([samples] * size, FIT))
"""
ALL_REDUCE = "suites/collectives/test_performance.py::test_bus_bandwidth[2ranks-all_reduce-1GiB]"


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what the distributions are made of: a build writes into the folder."""
    folder = tmp_path_factory.mktemp("sources")
    for name in ("pytest_gpuperf", "suites"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, folder)
    return folder


def build(kind: str, folder: Path, target: Path) -> Path:
    """Builds an ``sdist`` or a ``wheel`` with the setuptools of this environment."""
    subprocess.run([sys.executable, "-c", BUILD.format(kind), target], cwd=folder, check=True, capture_output=True)
    (built,) = target.iterdir()
    return built


@pytest.fixture(scope="module")
def wheel(sources: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("wheel", sources, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment that has the wheel, and the packages of this environment behind it."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    interpreter = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(interpreter), "install", "--no-deps", "--no-index", "--quiet"]
    subprocess.run([*pip, str(wheel)], check=True)
    (packages,) = folder.glob("lib/python3*/site-packages")
    (packages / "shared.pth").write_text(sysconfig.get_path("purelib"))
    return interpreter


def run(python: Path, folder: Path, *command: str, path: str = "") -> subprocess.CompletedProcess[str]:
    here = {**environment(), "PYTHONPATH": path, "CI": ""}
    return subprocess.run(
        [python, *command], cwd=folder, env=here, capture_output=True, text=True, timeout=120, check=False
    )


def test_a_test_of_ones_own_runs_without_the_checkout(python: Path, tmp_path: Path) -> None:
    (tmp_path / "test_own.py").write_text(OWN)
    done = run(python, tmp_path, "-m", "pytest", "-s", "-o", f"gpuperf_leases={tmp_path / '.leases'}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert str(python.parents[1] / "lib") in done.stdout
    assert str(ROOT / "pytest_gpuperf") not in done.stdout


def test_the_suites_of_the_wheel_record_into_the_users_folder(python: Path, tmp_path: Path) -> None:
    helpers = tmp_path / "helpers"
    (helpers / "tests" / "hardware").mkdir(parents=True)
    for file in ("__init__.py", "fake_gpus.py", "hardware/__init__.py", "hardware/fake_devices.py"):
        shutil.copy(ROOT / "tests" / file, helpers / "tests" / file)
    (helpers / "made_up_gpus.py").write_text(MADE_UP_GPUS)
    user = tmp_path / "user"
    user.mkdir()
    (suites,) = python.parents[1].glob("lib/python3*/site-packages/pytest_gpuperf/installed_suites/suites")
    # One subject alone is collected: to import all of them takes seconds.
    others = [f"--ignore={folder}" for folder in suites.iterdir() if folder.is_dir() and folder.name != "collectives"]
    command = ["-m", "pytest_gpuperf", "suites", "-p", "made_up_gpus", "--gpus=2", "-m", "perf", *others]
    command += ["-k", "2ranks-all_reduce-1GiB", "-o", f"gpuperf_leases={tmp_path / '.leases'}"]
    done = run(python, user, *command, "--update-baselines", "--reason=accepted", path=str(helpers))
    assert done.returncode == 0, done.stdout + done.stderr
    baselines = json.loads((user / "baselines" / "2x-nvidia-h200-nv18.json").read_text())
    assert list(baselines["tests"]) == [ALL_REDUCE]
    assert {".pytest_cache", "baselines"} <= set(os.listdir(user))
    assert {path.name for path in suites.parent.iterdir()} == {"pytest.ini", "suites"}  # nothing was written there


def test_the_wheel_has_the_suites_of_the_checkout_and_no_package_of_that_name(wheel: Path) -> None:
    root = "pytest_gpuperf/installed_suites/"
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        suites = {name.removeprefix(root): archive.read(name) for name in names if name.startswith(root + "suites/")}
        assert f"{root}pytest.ini" in names
        assert f"{root}__init__.py" not in names  # or the modules would have other names than in a checkout
        assert {name.partition("/")[0] for name in names} == {"pytest_gpuperf", "pytest_gpuperf-0.1.0.dist-info"}
    here = {str(file.relative_to(ROOT)): file.read_bytes() for file in ROOT.glob("suites/**/*.py")}
    assert suites == {name: text for name, text in here.items() if name not in OF_A_CHECKOUT}


def test_the_source_distribution_has_what_a_wheel_is_built_of(sources: Path, tmp_path: Path) -> None:
    with tarfile.open(build("sdist", sources, tmp_path)) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    built_of = [*sources.glob("suites/**/*.py"), *sources.glob("pytest_gpuperf/**/*.*"), sources / "setup.py"]
    assert {str(file.relative_to(sources)) for file in built_of if file.is_file()} <= names
    # pytest takes what this list names for the plugin's: with the suites in it, they cannot be imported before a run.
    listed = (sources / "pytest_gpuperf.egg-info" / "SOURCES.txt").read_text().splitlines()
    assert "pytest_gpuperf/plugin.py" in listed
    assert not [name for name in listed if name.startswith("suites/")]


def test_a_users_type_checker_reads_the_wheels_types(python: Path, tmp_path: Path) -> None:
    shutil.copy(ROOT / "tests" / "typed_consumer" / "consumer.py", tmp_path)
    # torch has types of its own, which take long to read.
    (tmp_path / "mypy.ini").write_text("[mypy]\nstrict = true\n[mypy-torch.*]\nfollow_imports = skip\n")
    command = [sys.executable, "-m", "mypy", f"--python-executable={python}", "consumer.py"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment(PYTHONPATH=""), capture_output=True, text=True, check=False
    )
    assert done.stdout == "Success: no issues found in 1 source file\n", done.stdout + done.stderr
