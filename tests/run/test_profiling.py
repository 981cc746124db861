"""Perf tests are profiled once all their figures have been measured, and their outcomes are what they were."""

import json
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from pytest_gpuperf.api.checks import Measured
from pytest_gpuperf.features.profiling.lines import PROFILES
from pytest_gpuperf.features.profiling.on_rank import STEPS, WARMUP_STEPS
from pytest_gpuperf.features.profiling.profiler import ProfileWarning, Profiling, make_file_name
from pytest_gpuperf.ranks.failures import RankDied
from pytest_gpuperf.timing.sampling import Sampling
from pytest_gpuperf.traces.rank_trace import RankTrace
from tests.traces.kineto import STARTED, gpu_step, trace
from tests.traces.opened import Opened
from tests.whole_run import run_pytest, write

TEST = "test_it.py::test_speed[2ranks]"


class FakeRanks:
    """Answers each run with what was scripted, and notes what it was asked for."""

    def __init__(self, *answers: list[RankTrace] | BaseException) -> None:
        self.answers = list(answers)
        self.log: list[str] = []

    def run(
        self,
        world_size: int,
        entry: Callable[..., Any],
        args: Sequence[Any],
        kwargs: dict[str, Any],
        program: Callable[..., Any],
    ) -> list[Any]:
        self.log.append(str(args[3]))
        answer = self.answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def replace_ranks(self) -> None:
        self.log.append("replaced")


def profiling(folder: Path, ranks: FakeRanks) -> Profiling:
    return Profiling(folder, folder, cast(Any, ranks))


def two_ranks() -> list[RankTrace]:
    return [trace(gpu_step(0.0), rank, f"cuda:{rank}") for rank in (0, 1)]


def measured(arm: str = "measure", **more: Any) -> Measured:
    return Measured(arm, two_ranks, {}, Sampling(), **more)


class FakeItem:
    """As much of a test as its profile touches."""

    def __init__(self) -> None:
        self.user_properties: list[tuple[str, object]] = []

    def warn(self, warning: Warning) -> None:
        warnings.warn(warning, stacklevel=2)


@pytest.fixture
def item() -> pytest.Item:
    return cast(pytest.Item, FakeItem())


def profiles(item: pytest.Item) -> list[dict[str, Any]]:
    (carried,) = [value for name, value in item.user_properties if name == PROFILES.where]
    found: list[dict[str, Any]] = json.loads(str(carried))
    return found


def test_each_program_has_a_file_and_the_ranks_are_replaced_once(item: pytest.Item, tmp_path: Path) -> None:
    ranks = FakeRanks(two_ranks(), two_ranks(), two_ranks(), two_ranks())
    programs = [
        measured(),
        measured(),
        measured("sweep", sizes=(1024, 2048), nbytes=1024),
        measured("together", overlap_exposed=0.25),
    ]
    profiling(tmp_path, ranks).profile(item, TEST, 2, programs)
    arms = ["measure", "measure-2", "sweep-1KiB", "together"]
    assert ranks.log == [*(f"{TEST} {arm}" for arm in arms), "replaced"]
    found = profiles(item)
    assert [one["arm"] for one in found] == arms
    assert [one["overlap_exposed"] for one in found] == [None, None, None, 0.25]
    for one in found:
        opened = Opened(tmp_path / one["file"])
        assert opened.data["gpuperf"] == {"test": TEST, "arm": one["arm"], "steps": 3, "world_size": 2}
        assert [rank["exposed"] for rank in one["ranks"]] == [pytest.approx(10e-6)] * 2
        assert one["problem"] == ""


PROBLEMS = {
    "raises": (ValueError("not while\nyou look"), "ValueError: not while you look"),
    "skips": (pytest.skip.Exception("no room"), "Skipped: no room"),
    "dies": (RankDied("rank 1 died"), "RankDied: rank 1 died"),
    "no trace": (
        [RankTrace(0, "cuda:0", STARTED, b"")],
        "Nsight Systems profiles the ranks, and a GPU serves one profiler: its report has NVTX ranges",
    ),
}


@pytest.mark.parametrize(("answer", "problem"), PROBLEMS.values(), ids=PROBLEMS)
def test_a_program_that_cannot_be_profiled_is_named_in_a_warning_and_the_next_one_is_profiled(
    item: pytest.Item, tmp_path: Path, answer: Any, problem: str
) -> None:
    ranks = FakeRanks(answer, two_ranks())
    with pytest.warns(ProfileWarning) as caught:
        profiling(tmp_path, ranks).profile(item, TEST, 2, [measured(), measured("meter")])
    assert [str(one.message) for one in caught] == [f"{TEST}: measure could not be profiled: {problem}"]
    first, second = profiles(item)
    assert (first["file"], first["problem"], second["problem"]) == ("", problem, "")
    assert ranks.log[-1] == "replaced"


def test_a_folder_that_is_gone_is_a_warning(item: pytest.Item, tmp_path: Path) -> None:
    with pytest.warns(ProfileWarning, match=r"measure could not be profiled: FileNotFoundError: "):
        profiling(tmp_path / "gone", FakeRanks(two_ranks())).profile(item, TEST, 2, [measured()])


def test_who_interrupts_the_run_interrupts_the_profile_and_leaves_no_rank(item: pytest.Item, tmp_path: Path) -> None:
    ranks = FakeRanks(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        profiling(tmp_path, ranks).profile(item, TEST, 2, [measured()])
    assert ranks.log[-1] == "replaced"


def test_file_names_hold_no_more_than_a_file_name_can() -> None:
    hostile = "../a/test_x.py::Test::test[../../etc/passwd\x1b[31m<b>%s" + "é" * 400 + "\ud800]"
    name = make_file_name(hostile, "measure")
    assert len(name.encode()) < 200
    assert set(name) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-")
    assert not name.startswith(".")
    assert make_file_name("a/b.py::t", "measure") != make_file_name("a-b.py::t", "measure")
    assert make_file_name(TEST, "together").startswith("test_it.py-test_speed-2ranks-together-")


PROJECT = """
import os, time
from pathlib import Path
import pytest, torch, torch.distributed as dist

LOG = Path(__file__).with_suffix(".log")

def program(ctx):
    x = torch.ones(64)
    def step():
        looked_at = torch.autograd._profiler_enabled()
        with LOG.open("a") as log:
            log.write(f"{ctx.rank} {os.getpid()} {looked_at}\\n")
        dist.all_reduce(x)
    return step

@pytest.mark.perf
@pytest.mark.ranks(2)
@pytest.mark.parametrize("name", ["a", "<b>/../\\x1b[31m"])
def test_speed(perf, name):
    perf.check(first=perf.measure(program).time, second=perf.measure(program).time)

@pytest.mark.perf
@pytest.mark.ranks(2)
def test_overlap(perf):
    def of(compute, communicate):
        def prepare(ctx):
            x, a = torch.ones(64), torch.ones(64, 64)
            def step():
                if communicate: dist.all_reduce(x)
                return a @ a if compute else x
            return step
        return prepare
    found = perf.overlap(together=of(True, True), compute=of(True, False), communication=of(False, True))
    perf.check(exposed=found.exposed)

@pytest.mark.perf
@pytest.mark.ranks(2)
def test_search(perf):
    def prepare(ctx, *, times, late=0.0):
        def step():
            time.sleep(late)
            for _ in range(times):
                dist.all_reduce(x := torch.ones(64))
            return x
        return step
    configurations = {f"{n} times": {"times": n} for n in (1, 100)} | {"late": {"times": 1, "late": 1.0}}
    found = perf.search(prepare, configurations=configurations)
    perf.check(**found.figures)

@pytest.mark.perf
@pytest.mark.ranks(2)
def test_fails_when_profiled(perf):
    def prepare(ctx):
        def step():
            assert not torch.autograd._profiler_enabled(), "somebody looks"
        return step
    perf.check(time=perf.measure(prepare).time)
"""


def test_a_whole_run_is_profiled_after_it_has_measured(tmp_path: Path) -> None:
    folder = write(tmp_path, {"test_it.py": PROJECT, "pytest.ini": "[pytest]\n"})
    # Also on a worker of xdist, and where the warning would be an error: no outcome changes.
    options = ("--smoke", "--gpuperf-json=r.json", "--profile=out")
    run = run_pytest(folder, *options, "-n1", "-W", "error::pytest_gpuperf.ProfileWarning")
    run.result.assert_outcomes(passed=5)
    failing = "test_it.py::test_fails_when_profiled[2ranks]"
    assert f"ProfileWarning: {failing}: measure could not be profiled: AssertionError: somebody looks" in run.text

    steps = [line.split() for line in (folder / "test_it.log").read_text().splitlines()]
    processes = list(dict.fromkeys(process for rank, process, _ in steps if rank == "0"))
    assert len(processes) == 2  # each of the two tests has ranks of its own
    for process in processes:
        looked_at = [looked for _, by, looked in steps if by == process]
        since = looked_at[looked_at.index("True") :]
        # Each test has measured twice: only the second profile's warm-up comes after the first profile.
        assert since == ["True"] * STEPS + ["False"] * WARMUP_STEPS + ["True"] * STEPS
        assert len(looked_at) - len(since) > WARMUP_STEPS, "the profiler ran before the test had measured"

    found = json.loads((folder / "r.json").read_text())["shown"]["profiles"]
    written = [one["file"] for one in found if one["file"]]
    assert len({*written}) == len(written) == 9
    assert sorted(written) == sorted(f"out/{path.name}" for path in (folder / "out").iterdir())
    for file in written:
        opened = Opened(folder / file)
        assert opened.processes == {1: "rank 0 (cpu)", 2: "rank 1 (cpu)"}
        assert opened.collectives()
    best_two = {one["arm"] for one in found if "test_search" in one["test"]}  # a busy machine may swap them
    assert best_two == {"search-1 times", "search-100 times"}
    lines = run.section("gpuperf")
    assert "9 traces in out: open one at https://ui.perfetto.dev" in lines
    (line,) = [line for line in lines if line.startswith("profile: test_it.py::test_overlap[2ranks]: ")]
    assert "communication exposed in the trace (" in line
    assert line.endswith(" by perf.overlap")
