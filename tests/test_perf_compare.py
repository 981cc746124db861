"""``perf.compare`` over several process groups, with real processes: only the GPUs are made up."""

import math
import re
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from pytest_gpuperf import Comparison, Context, Perf
from pytest_gpuperf.fixtures.perf import MAX_GROUPS, PAUSE, Checks
from pytest_gpuperf.hardware.gpus import Gpu
from pytest_gpuperf.timing.record import RankSamples
from pytest_gpuperf.timing.sampling import Sampling
from pytest_gpuperf.verdicts.validity import FIT, Conditions
from tests.fake_gpus import gpu
from tests.test_judged_run import CONFTEST
from tests.whole_run import WholeRun, run_pytest, write

TESTS = """
import time
from pathlib import Path
import pytest, torch

pytestmark = [pytest.mark.perf, pytest.mark.ranks(2)]
FOLDER = Path(__file__).parent

def sleeping(seconds, name):
    def program(ctx):
        if ctx.rank == 0:
            with (FOLDER / "groups").open("a") as file:
                print(name, ctx.store.add("programs", 1), file=file)  # counts anew in each group
        def step():
            time.sleep(seconds)
            return torch.ones(1)
        return step
    return program

def test_before(perf):
    perf.check(time=perf.configured(budget=0.05).measure(sleeping(1e-3, "before")).time)

def test_race(perf):
    pair = perf.configured(budget=0.2, precision=0.05).compare(
        baseline=sleeping(20e-3, "slow"), optimized=sleeping(5e-3, "fast"), at_least=1.5
    )
    low, high = pair.interval
    assert low < pair.speedup.value < high
    perf.check(speedup=pair.speedup)

def test_z_after(perf):
    perf.check(time=perf.configured(budget=0.05).measure(sleeping(1e-3, "after")).time)
"""


def test_the_groups_of_a_comparison_follow_one_another_and_the_launch_goes_on_in_the_last(tmp_path: Path) -> None:
    folder = write(tmp_path, {"conftest.py": CONFTEST, "test_it.py": TESTS, "pytest.ini": "[pytest]\n"})
    run: WholeRun = run_pytest(folder, "--gpus=2")
    run.result.assert_outcomes(failed=3)
    assert run.text.count("has no baseline") >= 3, run.text  # nothing else failed
    lines = [line.split() for line in (folder / "groups").read_text().splitlines()]
    assert [line[0] for line in lines] == ["before", *["slow", "fast"] * 3, "after"]
    assert [int(line[1]) for line in lines] == [1, 2, 3, 1, 2, 1, 2, 3]


class ScriptedSession:
    """Gives each group's samples in turn: of a baseline that takes so many times as long."""

    def __init__(self, ratios: list[float]) -> None:
        self.ratios = ratios
        self.renewed = 0
        self.arguments: tuple[Any, ...] = ()
        self.machine = SimpleNamespace(linkage=None)

    def run(self, *args: Any) -> list[tuple[RankSamples, RankSamples]]:
        """One rank's samples."""
        ratio = self.ratios[self.renewed]
        return [(RankSamples((ratio, ratio), "host", False, 1), RankSamples((1.0, 1.0), "host", False, 1))]

    def watched_run(self, *args: Any) -> tuple[list[Any], Conditions]:
        """The same on a machine that was fit."""
        self.arguments = args
        return self.run(), FIT

    def renew_group(self, world_size: int) -> None:
        """The next group."""
        self.renewed += 1


def nothing(ctx: Context) -> Callable[[], None]:
    """Is not called."""
    raise NotImplementedError


def raced(ratios: list[float], at_least: float | None, *, smoke: bool = False) -> Comparison:
    ranks = SimpleNamespace(world_size=1)
    perf = Perf(cast(Any, ScriptedSession(ratios)), cast(Any, ranks), Checks(), Sampling(smoke=smoke))
    return perf.compare(baseline=nothing, optimized=nothing, at_least=at_least)


WAVERING = [1.9, 2.1, 2.0, 1.95, 2.05, 2.0, 2.0, 2.0]


@pytest.mark.parametrize(
    ("at_least", "groups"),
    [(None, 3), (1.5, 3), (3.0, 3), (1.93, 7), (2.0, MAX_GROUPS)],
    ids=["not asked", "surely above", "surely below", "above", "in doubt"],
)
def test_groups_are_added_until_the_speedup_is_decided(at_least: float | None, groups: int) -> None:
    assert len(raced(WAVERING, at_least).groups) == groups


@pytest.mark.parametrize("at_least", [0, -1.2, math.nan, math.inf, "1.2"])
def test_what_is_no_speedup_is_refused_before_anything_is_measured(at_least: Any) -> None:
    message = f"at_least is the speedup that is asked for, a positive number, got {at_least!r}"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        raced([], at_least)  # a group of which would be an IndexError


def test_the_first_groups_share_the_budget() -> None:
    session = ScriptedSession(WAVERING)
    ranks = SimpleNamespace(world_size=1)
    perf = Perf(cast(Any, session), cast(Any, ranks), Checks(), Sampling(budget=0.6))
    perf.compare(baseline=nothing, optimized=nothing)
    (sampling,) = [argument for argument in session.arguments[2] if isinstance(argument, Sampling)]
    assert sampling.budget == pytest.approx(0.2)


def test_a_smoke_run_makes_one_group() -> None:
    assert len(raced([2.0], 2.0, smoke=True).groups) == 1


@pytest.mark.parametrize(("gpus", "expected"), [((), None), ((gpu(0), gpu(1)), 989.4e12)], ids=["CPUs", "H200"])
def test_the_peak_is_that_of_the_runs_gpus(gpus: tuple[Gpu, ...], expected: float | None) -> None:
    session = SimpleNamespace(machine=SimpleNamespace(gpus=gpus))
    perf = Perf(cast(Any, session), cast(Any, SimpleNamespace(world_size=2)), Checks(), Sampling())
    assert perf.peak(torch.bfloat16) == expected


class HotSession(ScriptedSession):
    """Whose GPUs are too hot in so many of its first runs."""

    def __init__(self, hot: int) -> None:
        super().__init__([1.0, 1.1, 0.9])
        self.hot = hot

    def watched_run(self, *args: Any) -> tuple[list[Any], Conditions]:
        """One rank's samples."""
        self.hot -= 1
        tripped = ("GPU GPU-1: hardware thermal slowdown",) if self.hot >= 0 else ()
        return self.run(), Conditions(tripped, power_capped=True)


@pytest.mark.parametrize(("hot", "invalid"), [(0, ""), (1, ""), (2, "GPU GPU-1: hardware thermal slowdown")])
def test_a_measurement_on_an_unfit_machine_is_repeated_once(
    monkeypatch: pytest.MonkeyPatch, hot: int, invalid: str
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    perf = Perf(cast(Any, HotSession(hot)), cast(Any, SimpleNamespace(world_size=1)), Checks(), Sampling())
    speedup = perf.compare(baseline=nothing, optimized=nothing).speedup
    assert (speedup.invalid, speedup.power_capped) == (invalid, True)
    assert pauses == [PAUSE] * min(hot, 1)
