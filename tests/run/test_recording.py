"""What a run measured: judged one by one, or kept and written at the end."""

import os
import platform
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_gpuperf import Metric
from pytest_gpuperf.baselines.json_files import load
from pytest_gpuperf.baselines.provenance import select_settings
from pytest_gpuperf.baselines.schema import BaselineError, Baselines
from pytest_gpuperf.features.recording.saving import Saved
from pytest_gpuperf.figures.conditions import Gate, Tripped
from pytest_gpuperf.hardware.machine import Machine
from pytest_gpuperf.verdicts.outcome import Outcome
from pytest_gpuperf.verdicts.rule import Policy
from tests.fake_gpus import machine_of
from tests.run.halves import Halves, Said

KEY = "8x-nvidia-h200-nv18"
SOFTWARE = {"torch": "2.13.0"}


@pytest.fixture
def options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Said:
    for name in select_settings(os.environ):  # of a GPU machine, say
        monkeypatch.delenv(name)
    return Said(
        gpus=8,
        require_gpus=False,
        smoke=False,
        numa_binding=True,
        update_baselines=True,
        launches=2,
        reason="first",
        baselines=tmp_path / "baselines",
        timeout=120.0,
        example_timeout=20.0,
        grace=2.0,
        lease_timeout=60.0,
        leases=tmp_path / "leases",
        policy=Policy(),
    )


def busbw(value: float) -> Metric:
    return Metric(value, "B/s", "higher", value * 0.99, value * 1.01, 50, limit=450e9, clock="cuda_event")


def passed(measurements: Halves, launch: int, test: str, metrics: dict[str, Metric]) -> None:
    measurements.conclude(test, "body", metrics)
    measurements.ended(test, launch, "")


def record(options: Said, *tests: str, value: float = 100e9, steady: bool = False) -> Saved | None:
    """One recording of these tests, each launch as many times the first unless steady."""
    measurements = Halves(options, machine_of(8), options.baselines.parent)
    measurements.load([])
    for launch in range(1, options.launches + 1):
        measurements.begin_launch(launch, SOFTWARE)
        for test in tests:
            passed(measurements, launch, test, {"busbw": busbw(value if steady else value * launch)})
    return measurements.save()


def stored(options: Said) -> Baselines:
    baselines = load(options.baselines / f"{KEY}.json", KEY)
    assert baselines is not None
    return baselines


def judged(options: Said, **metrics: Metric) -> list[Outcome]:
    measurements = Halves(replace(options, update_baselines=False), machine_of(8), options.baselines.parent)
    measurements.load([])
    return [verdict.outcome for verdict in measurements.conclude("test_a", "body", metrics)]


def test_a_recording_keeps_one_figure_for_each_launch(options: Said) -> None:
    saved = record(options, "test_a", "test_b")
    assert saved is not None
    assert (Path(saved.where), saved.tests, saved.failed) == (options.baselines / f"{KEY}.json", 2, False)
    baselines = stored(options)
    assert sorted(baselines.tests) == ["test_a", "test_b"]
    for test in baselines.tests.values():
        metric = test.metrics["busbw"]
        assert (metric.unit, metric.better, metric.clock) == ("B/s", "higher", "cuda_event")
        assert [figure.median for figure in metric.launches] == [100e9, 200e9]
        assert [figure.n for figure in metric.launches] == [50, 50]
        assert [(figure.q1, figure.q3) for figure in metric.launches] == [(99e9, 101e9), (198e9, 202e9)]
        assert {figure.launch for figure in metric.launches} == set(baselines.launches)
    (environment,) = {tuple(info.environment.items()) for info in baselines.launches.values()}
    assert {("driver", "570.86"), ("torch", "2.13.0"), ("kernel", platform.release())} < set(environment)
    assert {info.gpus for info in baselines.launches.values()} == {machine_of(8).identity}


def test_a_launch_keeps_what_may_slow_everything(options: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_PROTO", "LL")
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    monkeypatch.setenv("PATH_OF_SOMETHING", "/somewhere")
    record(options, "test_a")
    for info in stored(options).launches.values():
        kept = {name: value for name, value in info.environment.items() if name.isupper()}
        assert kept == {"NCCL_PROTO": "LL", "CUDA_LAUNCH_BLOCKING": "1"}


@pytest.mark.parametrize("dirty", [False, True])
def test_a_launch_tells_whether_its_checkout_had_changes(
    options: Said, monkeypatch: pytest.MonkeyPatch, dirty: bool
) -> None:
    monkeypatch.setattr("pytest_gpuperf.run.current_launch.is_dirty", lambda folder: dirty)
    record(options, "test_a")
    assert {info.dirty for info in stored(options).launches.values()} == {dirty}


def test_gpus_are_told_from_others_of_their_kind_in_any_order() -> None:
    two, eight = machine_of(2), machine_of(8)
    assert two.key != eight.key
    assert len({machine.identity for machine in (two, eight, replace(eight, gpus=eight.gpus[1:]))}) == 3
    assert replace(eight, gpus=eight.gpus[::-1]).identity == eight.identity
    assert all(gpu.uuid not in eight.identity for gpu in eight.gpus)
    assert Machine((), None, False).identity == ""


@pytest.mark.parametrize(
    ("value", "outcome"),
    [
        (441e9, Outcome.SAME),
        (430e9, Outcome.SAME),
        (400e9, Outcome.UNDECIDED),
        (500e9, Outcome.INVALID),
    ],
)
def test_a_figure_is_held_against_what_was_recorded(options: Said, value: float, outcome: Outcome) -> None:
    record(replace(options, launches=10), "test_a", value=440e9, steady=True)
    assert judged(options, busbw=busbw(value)) == [outcome]


def test_a_figure_without_baseline_is_missing(options: Said) -> None:
    assert judged(options, busbw=busbw(300e9)) == [Outcome.MISSING]
    record(replace(options, launches=10), "test_a", steady=True)
    assert judged(options, busbw=busbw(100e9), other=busbw(100e9)) == [Outcome.SAME, Outcome.MISSING]


def test_the_minimum_slowdown_is_the_runs(options: Said) -> None:
    record(replace(options, launches=10), "test_a", steady=True)
    assert judged(options, busbw=busbw(90e9)) == [Outcome.UNDECIDED]
    assert judged(replace(options, policy=Policy(minimum_slowdown=0.2)), busbw=busbw(90e9)) == [Outcome.SAME]


def test_a_second_recording_replaces_its_own_tests_and_keeps_the_others(options: Said) -> None:
    record(options, "test_a", "test_b")
    record(replace(options, launches=3, reason="second"), "test_b", value=120e9)
    baselines = stored(options)
    assert len(baselines.tests["test_a"].metrics["busbw"].launches) == 2
    assert [figure.median for figure in baselines.tests["test_b"].metrics["busbw"].launches] == [120e9, 240e9, 360e9]
    assert len(baselines.launches) == 5
    assert [(update.reason, update.launches, update.tests) for update in baselines.updates] == [
        ("first", 2, ("test_a", "test_b")),
        ("second", 3, ("test_b",)),
    ]


def test_a_test_that_lacks_a_launch_is_not_written(options: Said) -> None:
    measurements = Halves(options, machine_of(8), options.baselines.parent)
    for launch, tests in [(1, ("test_a", "test_b")), (2, ("test_a",))]:
        measurements.begin_launch(launch, SOFTWARE)
        for test in tests:
            passed(measurements, launch, test, {"busbw": busbw(300e9)})
    assert measurements.left_out() == {
        "test_b": "it did not run in launch 2 of 2: let the recording run to its end",
    }
    saved = measurements.save()
    assert saved is not None
    assert saved.tests == 1
    assert list(stored(options).tests) == ["test_a"]


def test_a_test_whose_metrics_differ_by_launch_is_not_written(options: Said) -> None:
    measurements = Halves(options, machine_of(8), options.baselines.parent)
    for launch, name in [(1, "busbw"), (2, "algbw")]:
        measurements.begin_launch(launch, SOFTWARE)
        passed(measurements, launch, "test_a", {name: busbw(300e9)})
    assert measurements.left_out() == {
        "test_a": "it checked no 'busbw' in launch 2 of 2, as it did in others: let it check the same metrics in each",
    }
    assert measurements.save() is None
    assert not options.baselines.exists()


@pytest.mark.parametrize("problem", ["failed", "was skipped"])
def test_a_test_that_does_not_pass_in_a_launch_is_not_written(options: Said, problem: str) -> None:
    measurements = Halves(replace(options, launches=3), machine_of(8), options.baselines.parent)
    for launch, became in [(1, ""), (2, problem), (3, "failed")]:
        measurements.begin_launch(launch, SOFTWARE)
        measurements.conclude("test_a", "body", {"busbw": busbw(300e9)})
        measurements.ended("test_a", launch, became)
    assert measurements.left_out() == {
        "test_a": f"it {problem} in launch 2 of 3: record it again once it passes in all of them"
    }
    assert measurements.save() is None


def test_a_test_that_runs_twice_in_a_launch_is_not_written(options: Said) -> None:
    measurements = Halves(replace(options, launches=1), machine_of(8), options.baselines.parent)
    measurements.begin_launch(1, SOFTWARE)
    for _ in range(2):
        passed(measurements, 1, "test_a", {"busbw": busbw(300e9)})
    assert measurements.left_out() == {"test_a": "it ran more than once in a launch: select it once"}


def test_a_figure_above_its_limit_is_invalid_and_not_kept(options: Said) -> None:
    measurements = Halves(replace(options, launches=1), machine_of(8), options.baselines.parent)
    measurements.begin_launch(1, SOFTWARE)
    metrics = {"good": busbw(300e9), "bad": busbw(900e9)}
    outcomes = [verdict.outcome for verdict in measurements.conclude("test_a", "body", metrics)]
    assert outcomes == [Outcome.RECORDED, Outcome.INVALID]
    assert measurements.save() is None


def test_a_smoke_run_judges_nothing_and_reads_no_file(options: Said) -> None:
    options.baselines.mkdir()
    (options.baselines / f"{KEY}.json").write_text("broken")
    smoke = replace(options, smoke=True, update_baselines=False)
    measurements = Halves(smoke, machine_of(8), options.baselines.parent)
    measurements.load([])
    verdicts = measurements.conclude("test_a", "body", {"busbw": busbw(900e9)})
    assert [verdict.outcome for verdict in verdicts] == [Outcome.UNJUDGED]
    assert measurements.save() is None


def test_without_gpus_nothing_is_judged(options: Said) -> None:
    without = Halves(replace(options, update_baselines=False), Machine((), None, False), options.baselines.parent)
    without.load([])
    assert without.session.judging is None
    verdicts = without.conclude("test_a", "body", {"busbw": busbw(300e9)})
    assert [(verdict.outcome, verdict.hardware_key) for verdict in verdicts] == [(Outcome.UNJUDGED, "cpu")]


@pytest.mark.parametrize("update", [True, False])
def test_a_file_that_cannot_be_read_stops_the_run_before_anything_is_measured(options: Said, update: bool) -> None:
    options.baselines.mkdir()
    (options.baselines / f"{KEY}.json").write_text("broken")
    with pytest.raises(BaselineError, match="got no valid JSON"):
        Halves(replace(options, update_baselines=update), machine_of(8), options.baselines.parent).load([])


def test_nothing_measured_is_nothing_written(options: Said) -> None:
    assert record(options) is None
    assert not options.baselines.exists()


def test_the_commit_and_the_author_are_those_of_the_repository(
    options: Said, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    git = ["git", "-c", "user.name=Ada", "-c", "user.email=ada@example.org"]
    for arguments in (["init", "-q"], ["config", "user.name", "Ada"], ["commit", "-q", "--allow-empty", "-m", "one"]):
        subprocess.run([*git, *arguments], cwd=tmp_path, check=True)
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=tmp_path, check=True, capture_output=True, text=True).stdout
    record(options, "test_a")
    (update,) = stored(options).updates
    assert (update.commit, update.author) == (head.strip(), "Ada")
    assert {info.commit for info in stored(options).launches.values()} == {head.strip()}


@pytest.mark.parametrize(
    ("sha", "ref", "commit"),
    [
        ("abc123", "refs/heads/main", "abc123"),
        ("abc123", "refs/pull/1/merge", "unknown"),
        (None, "refs/heads/main", "unknown"),
    ],
    ids=["a branch", "a pull request", "no runner"],
)
def test_an_export_without_history_has_the_runners_commit_unless_that_is_a_merge_which_will_be_gone(
    options: Said, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sha: str | None, ref: str, commit: str
) -> None:
    monkeypatch.setenv("GITHUB_REF", ref)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    monkeypatch.delenv("GITHUB_SHA", raising=False)
    if sha is not None:
        monkeypatch.setenv("GITHUB_SHA", sha)
    record(options, "test_a")
    assert stored(options).updates[0].commit == commit


def test_a_machine_without_git_records_all_the_same(options: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("GITHUB_SHA", raising=False)
    record(options, "test_a")
    (update,) = stored(options).updates
    assert (update.commit, update.author) == ("unknown", "unknown")


@pytest.mark.parametrize("recording", [False, True])
def test_a_figure_that_is_shown_is_neither_judged_nor_recorded(options: Said, recording: bool) -> None:
    measurements = Halves(replace(options, update_baselines=recording), machine_of(8), options.baselines.parent)
    measurements.begin_launch(1, SOFTWARE)
    shown = measurements.unjudged("test_a", {"busbw": busbw(300e9), "too_fast": busbw(900e9)})
    assert [verdict.outcome for verdict in shown] == [Outcome.UNJUDGED, Outcome.INVALID]
    assert measurements.save() is None


@pytest.mark.parametrize("update", [True, False])
def test_an_invalid_figure_is_neither_judged_nor_recorded(options: Said, update: bool) -> None:
    measurements = Halves(replace(options, update_baselines=update), machine_of(8), options.baselines.parent)
    measurements.load([])
    measurements.begin_launch(1, SOFTWARE)
    metrics = {"hot": replace(busbw(100e9), invalid=(Tripped("GPU-1", Gate.POWER_BRAKE),)), "cool": busbw(100e9)}
    verdicts = measurements.conclude("test_a", "body", metrics)
    assert [verdict.outcome for verdict in verdicts] == [
        Outcome.INVALID,
        Outcome.RECORDED if update else Outcome.MISSING,
    ]
    assert measurements.save() is None
