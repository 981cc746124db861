"""One seed of hashes for all ranks of a run and of its races, and a parent process for each launch."""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from benchmarks import against_itself
from tests import scripted_arms
from tests.arms.checkouts import commit
from tests.fake_gpus import without_ranks
from tests.scripted_figures import STEADY, TESTS, figures, judged
from tests.whole_run import run_pytest

TELLS = """
import os, pathlib, time
import pytest

LOG = pathlib.Path(os.environ["LOG"])

def told(ctx):
    return f"{os.getppid()} {hash('a text')} {os.environ['PYTHONHASHSEED']}"

def sleeping(ctx):
    return lambda: time.sleep(0.005)

@pytest.mark.ranks(2)
def test_it(perf, ranks):
    with LOG.open("a") as log:
        print(*ranks.run(told), sep="\\n", file=log)
    perf.check(time=perf.configured(samples=10, budget=0.1).measure(sleeping).time)
"""
INI = "[pytest]\ngpuperf_minimum_slowdown = 0.5\n"  # one block of launches decides


@dataclass(frozen=True)
class Told:
    """What a rank told of itself."""

    parent: str
    hashed: str
    seed: str


def run_of_commit(folder: Path, *options: str, **environ: str) -> list[Told]:
    """Runs the test in a repository; what the ranks told, two in each launch."""
    files = {"test_it.py": TELLS, "pytest.ini": INI, ".gitignore": "__pycache__\n.leases\n"}
    commit(folder / "repository", files)
    log = folder / "log"
    run = run_pytest(folder / "repository", *options, env={"LOG": str(log), **environ})
    assert run.result.ret == 0, run.text
    seed = environ.get("PYTHONHASHSEED") or r"\d+"
    run.result.stdout.re_match_lines([rf"gpuperf: .* PYTHONHASHSEED={seed}$"])
    return [Told(*line.split()) for line in log.read_text().splitlines()]


def hash_with(seed: str) -> str:
    command = [sys.executable, "-c", "print(hash('a text'))"]
    done = subprocess.run(command, env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.mark.usefixtures("fresh_python")
def test_all_ranks_of_a_race_have_one_seed_and_each_launch_has_a_parent_of_its_own(tmp_path: Path) -> None:
    results = tmp_path / "results.json"
    told = run_of_commit(tmp_path, "--against=HEAD", f"--gpuperf-json={results}", PYTHONHASHSEED="")
    raced = against_itself.read(results, 1.0)
    assert list(raced.outcomes) == list(raced.changes) == ["it"]
    assert len(told) >= 2 * 2 * raced.launches["it"] >= 2 * 2 * 2  # two ranks, two arms
    assert len(told) >= 2 * 5  # the run's own launch, and a block
    assert len({one.hashed for one in told}) == len({one.seed for one in told}) == 1
    assert told[0].hashed == hash_with(told[0].seed)
    launches = [[one.parent for one in told[start : start + 2]] for start in range(0, len(told), 2)]
    assert all(len(set(parents)) == 1 for parents in launches), launches
    assert len({parents[0] for parents in launches}) == len(launches), launches


def test_the_users_own_seed_is_that_of_all_ranks(tmp_path: Path) -> None:
    told = run_of_commit(tmp_path, "--smoke", PYTHONHASHSEED="42")
    assert {(one.seed, one.hashed) for one in told} == {("42", hash_with("42"))}


@pytest.fixture
def recorded(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, object]]:
    """The launches of a record that was made with the seed 1, by their ids; from now on the seed is 2."""
    without_ranks(monkeypatch)
    scripted_arms.install(monkeypatch, pytester.path)
    pytester.makepyfile(test_it=TESTS)
    figures(pytester, a=STEADY * 2, b=STEADY * 2, c=STEADY * 2)
    monkeypatch.setenv("PYTHONHASHSEED", "1")
    options = ("--gpus=2", "--update-baselines", "--launches=10", "--reason=first")
    assert pytester.runpytest_inprocess(*options).ret == 0
    monkeypatch.setenv("PYTHONHASHSEED", "2")
    file = pytester.path / "baselines" / "2x-nvidia-h200-nv18.json"
    launches: dict[str, dict[str, object]] = json.loads(file.read_text())["launches"]
    return launches


@pytest.mark.usefixtures("eight_gpus")
def test_a_record_keeps_the_seed_and_a_verdict_does_not_explain_a_loss_by_another(
    recorded: dict[str, dict[str, object]], pytester: pytest.Pytester
) -> None:
    assert [launch["hash_seed"] for launch in recorded.values()] == ["1"] * 10
    figures(pytester, a=[90e9], b=[100e9], c=[100e9])
    scripted_arms.script(pytester, "present", a=[90e9])
    result = judged(pytester)
    assert result.ret == 1
    header, *others = [line for line in result.outlines if "PYTHONHASHSEED" in line]
    assert header.endswith("PYTHONHASHSEED=2")
    assert others == []
