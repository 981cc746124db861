"""The figures of the old arm are the old code's, whichever way its tests come by that code."""

import sys
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest
from setuptools.command import editable_wheel  # type: ignore[import-untyped]

from pytest_gpuperf.features.racing.arms.arms import Arms
from pytest_gpuperf.features.racing.arms.child_arm import ChildArm
from pytest_gpuperf.repository import CannotRace
from tests.arms.checkouts import CONFTEST, blueprint, commit, write
from tests.ranks.processes import survivors
from tests.whole_run import ROOT

IT, STRAY, HANG = (f"tests/test_it.py::test_{name}[2ranks]" for name in ("it", "stray", "hang"))
# What is beside the tests travels to the ranks by value; what is installed is imported there; so is what is late.
TESTS = """
import importlib.util, os, sys, time
import pytest
from conftest import VALUE
from pytest_gpuperf import Metric
from by_pth import speed as by_pth
from by_finder import speed as by_finder
from space.part import speed as space
import helper

pytestmark = pytest.mark.ranks(2)
HERE = {"helper": helper.value, "conftest": lambda: VALUE}
INSTALLED = {"pth": by_pth.value, "finder": by_finder.value, "space": space.value}

def program(ctx):
    import by_pth.late
    values = {name: value() for name, value in (HERE | INSTALLED).items()}
    return values | {"late": by_pth.late.value()}

def test_it(perf, ranks):
    first, second = ranks.run(program)
    assert first == second
    perf.check(**{name: Metric(value, "s", "lower") for name, value in first.items()})

def stray(ctx):
    if ctx.rank == 1:
        spec = importlib.util.spec_from_file_location("stray", "REPOSITORY/tests/helper.py")
        sys.modules["stray"] = importlib.util.module_from_spec(spec)

def test_stray(perf, ranks):
    ranks.run(stray)
    perf.check(time=Metric(1.0, "s", "lower"))

def hang(ctx):
    with open("REPOSITORY/pids", "a") as file:
        file.write(f"{os.getpid()} ")
    time.sleep(100)

def test_hang(perf, ranks):
    ranks.run(hang)
"""
EVERYWHERE = ("helper", "conftest", "pth", "finder", "space", "late")


def sources(folder: Path, value: float) -> dict[str, str]:
    function = f"def value():\n    return {value}\n"
    return {
        ".gitignore": ".venv\n",
        "tests/conftest.py": f"{CONFTEST}\nVALUE = {value}\n",
        "tests/helper.py": function,
        "tests/test_it.py": TESTS.replace("REPOSITORY", str(folder)),
        "src/by_pth/__init__.py": "",
        "src/by_pth/speed.py": function,
        "src/by_pth/late.py": function,
        "lib/by_finder/__init__.py": "",
        "lib/by_finder/speed.py": function,
        "spaces/space/part/speed.py": function,
    }


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Figures of its commit are 1 s, of its files 2 s; they are installed in a virtual environment that it holds."""
    folder = tmp_path_factory.mktemp("race") / "repository"
    commit(folder, sources(folder, 1.0))
    write(folder, sources(folder, 2.0))
    venv.create(folder / ".venv", symlinks=True)
    mapping, namespaces = {"by_finder": f"{folder}/lib/by_finder"}, {"space": [f"{folder}/spaces/space"]}
    finder = editable_wheel._finder_template("repository", mapping, namespaces)
    (site,) = (folder / ".venv").glob("lib/python*/site-packages")
    installed = [path for path in sys.path if Path(path).name == "site-packages"]
    write(
        site,
        {
            "a.pth": f"{folder}/src\n",
            "b.pth": "import editable_finder; editable_finder.install()\n",
            "c.pth": "\n".join(installed),
            "editable_finder.py": finder,
        },
    )
    return folder


@pytest.fixture(scope="module")
def race(repository: Path) -> Iterator[tuple[ChildArm, ChildArm]]:
    """The arms of the old code and of the present one, with ranks of their own."""
    python = str(repository / ".venv/bin/python")
    with pytest.MonkeyPatch.context() as patch, Arms(blueprint(repository), [IT, STRAY, HANG]) as arms:
        patch.setenv("PYTHONPATH", str(ROOT))
        old, present = arms.of("HEAD", python), arms.present(python)
        old.start()
        present.start()
        yield old, present


def test_it_is_the_old_codes_beside_the_tests_in_both_kinds_of_editable_installs_and_in_namespaces(
    race: tuple[ChildArm, ChildArm],
) -> None:
    old, present = race
    figures = [arm.launch([IT], 60)[IT] for arm in (old, present, present, old)]
    assert [one.problem for one in figures] == [""] * 4
    values = [{name: metric.value for name, metric in one.metrics.items()} for one in figures]
    assert values == [dict.fromkeys(EVERYWHERE, value) for value in (1.0, 2.0, 2.0, 1.0)]
    assert {one.body_hash for one in figures} == {figures[0].body_hash}
    assert old.seconds > 0


def test_a_rank_with_a_file_of_the_present_code_makes_the_race_void(
    race: tuple[ChildArm, ChildArm], repository: Path
) -> None:
    old, present = race
    assert present.launch([STRAY], 60)[STRAY].problem == ""
    with pytest.raises(CannotRace, match=f"^void: rank 1 loaded {repository}/tests/helper.py where the old code "):
        old.launch([STRAY], 60)


def test_ranks_that_hang_end_with_their_arm(race: tuple[ChildArm, ChildArm], repository: Path) -> None:
    _, present = race
    with pytest.raises(CannotRace, match=r"^the present code with \S+ took more than 15 s for launching 1 test: "):
        present.launch([HANG], 15)  # a launch begins with the import of torch
    pids = [int(word) for word in (repository / "pids").read_text().split()]
    assert len(pids) == 2
    assert survivors(pids) == []
