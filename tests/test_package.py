"""The public names, and what is not loaded for them."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import pytest_gpuperf
from tests.whole_run import environment


@pytest.mark.parametrize("name", pytest_gpuperf.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(pytest_gpuperf, name) is not None


def test_the_version_is_the_distributions() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+\S*", pytest_gpuperf.__version__)


def test_another_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"^module 'pytest_gpuperf' has no attribute 'Speed'$"):
        pytest_gpuperf.Speed  # noqa: B018


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
