"""``python -m pytest_gpuperf compare``: two files of one hardware side by side."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_gpuperf.__main__ import main
from pytest_gpuperf.baselines.compare import Pair, compare
from pytest_gpuperf.baselines.json_files import save
from pytest_gpuperf.baselines.schema import BaselineError, Baselines, MetricBaseline, TestBaseline
from pytest_gpuperf.report import results_file
from pytest_gpuperf.report.results_file import Results
from tests.baselines.examples import KEY, launch, metric_baseline

A, B = "suites/it.py::test_a[2ranks]", "suites/it.py::test_b[2ranks]"


def file(
    name: str,
    tests: Mapping[str, Mapping[str, MetricBaseline]],
    *,
    body: str = "body",
    key: str = KEY,
    watts: float = 700.0,
    nccl: str = "2.28.9",
) -> Path:
    """Baselines of these figures."""
    ids = {figure.launch for metrics in tests.values() for m in metrics.values() for figure in m.launches}
    path = Path(f"{name}.json")
    launches = {id_: replace(launch(), environment={"nccl": nccl, "torch": "2.13.0"}) for id_ in ids}
    entries = {test: TestBaseline(body, metrics) for test, metrics in tests.items()}
    save(path, Baselines(key, {"gpu_count": 8, "power_limit_w": watts}, launches, entries))
    return path


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def time(*seconds: float) -> MetricBaseline:
    return metric_baseline(*seconds, unit="s", better="lower", clock="host")


def told(pair: Pair) -> tuple[str, str, float | None]:
    return pair.test, pair.name, pair.change and round(pair.change, 6)


def test_figures_of_two_records_are_paired_the_largest_loss_first() -> None:
    one = file("one", {A: {"busbw": metric_baseline(100.0, 100.0), "time": time(1.0)}, B: {"time": time(2.0)}})
    other = file("other", {A: {"busbw": metric_baseline(110.0), "time": time(1.25)}, B: {"time": time(1.9)}})
    compared = compare(one, other)
    assert list(map(told, compared.pairs)) == [(A, "time", -0.25), (B, "time", 0.05), (A, "busbw", 0.1)]
    assert (compared.hardware_key, compared.other_bodies, compared.differing) == (KEY, (), {})


def test_what_is_only_in_one_comes_last() -> None:
    one = file("one", {A: {"busbw": metric_baseline(100.0), "time": time(1.0)}})
    other = file("other", {B: {"time": time(1.0)}, A: {"time": time(1.0)}})
    pairs = compare(one, other).pairs
    assert [(p.test, p.name, p.first is None, p.second is None) for p in pairs] == [
        (A, "time", False, False),
        (A, "busbw", False, True),
        (B, "time", True, False),
    ]


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (metric_baseline(1.0, unit="s", better="higher"), "unit of busbw was 'B/s' and is 's'"),
        (metric_baseline(1.0, better="lower"), "better of busbw was 'higher' and is 'lower'"),
        (metric_baseline(1.0, clock="host"), "clock of busbw was 'cuda_event' and is 'host'"),
    ],
)
def test_figures_that_are_not_alike_have_no_change(other: MetricBaseline, why: str) -> None:
    (pair,) = compare(file("one", {A: {"busbw": metric_baseline(1.0)}}), file("two", {A: {"busbw": other}})).pairs
    assert (pair.change, pair.unlike) == (None, why)


def test_other_bodies_and_other_software_are_told() -> None:
    one = file("one", {A: {"time": time(1.0)}, B: {"time": time(1.0)}})
    two = file("two", {A: {"time": time(1.0)}}, body="another", nccl="2.29.1")
    compared = compare(one, two)
    assert compared.other_bodies == (A,)
    assert compared.differing == {"nccl": ("2.28.9", "2.29.1")}


def test_results_of_a_run_are_held_against_a_record() -> None:
    record = file("record", {A: {"time": time(1.0, 1.0)}})
    measured = Baselines(KEY, {"gpu_count": 8}, {"launch-0": launch()}, {A: TestBaseline("body", {"time": time(1.1)})})
    results_file.write(Path("results.json"), Results(measured, ()))
    assert list(map(told, compare(record, Path("results.json")).pairs)) == [(A, "time", -0.1)]
    assert list(map(told, compare(Path("results.json"), record).pairs)) == [(A, "time", 0.090909)]


def test_two_hardwares_are_refused() -> None:
    one, two = file("one", {A: {"time": time(1.0)}}), file("two", {A: {"time": time(1.0)}}, key="1x-nvidia-t4")
    with pytest.raises(BaselineError) as caught:
        compare(one, two)
    assert str(caught.value) == (
        f"baselines 'two.json': is of '1x-nvidia-t4', expected '{KEY}' as in 'one.json': compare two files of one "
        "hardware"
    )


def test_two_power_limits_are_refused() -> None:
    one, two = file("one", {A: {"time": time(1.0)}}), file("two", {A: {"time": time(1.0)}}, watts=600.0)
    with pytest.raises(BaselineError) as caught:
        compare(one, two)
    assert str(caught.value) == (
        "baselines 'two.json': got GPUs with power_limit_w 600.0, expected power_limit_w 700.0 as in 'one.json': their "
        "metrics cannot be compared: keep baselines of these GPUs in a folder of their own (--baselines DIR)"
    )


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "there is no such file: name a file of baselines, or one of --gpuperf-json"),
        ("{}", "file: got [], expected a key 'schema': "),
        ('{"schema": 2}', "file: got ['schema'], expected a key 'hardware_key': "),
        ('{"schema": 2, "hardware_key": 3}', "file.hardware_key: got 3, expected a string: "),
        ('{"results": 1}', "file: got ['results'], expected a key 'hardware_key': "),
    ],
)
def test_a_file_that_is_neither_is_refused(
    capsys: pytest.CaptureFixture[str], content: str | None, problem: str
) -> None:
    if content is not None:
        Path("x.json").write_text(content)
    assert main(["compare", "x.json", str(file("one", {}))]) == 1
    said = capsys.readouterr()
    assert problem in said.err
    assert "'x.json'" in said.err
    assert said.out == ""


def test_it_is_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    one, two = file("one", {A: {"time": time(1.0)}}), file("two", {A: {"time": time(1.5)}})
    assert main(["compare", str(one), str(two)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["first: one.json", "second: two.json"]
    assert any(line.startswith("+50.0 % time ") and line.endswith(f"{A} time") for line in lines)


def test_names_of_a_file_move_no_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    one = file("one", {f"{A}\x1b[2J": {"time": time(1.0)}})
    data = json.loads(one.read_text())
    assert "\x1b" in next(iter(data["tests"]))
    assert main(["compare", str(one), str(one)]) == 0
    assert "\x1b" not in capsys.readouterr().out


def test_two_files_without_a_common_figure_are_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    one, two = file("one", {A: {"time": time(1.0)}}), file("two", {A: {"busbw": metric_baseline(1.0)}, B: {}})
    assert main(["compare", str(one), str(two)]) == 1
    assert capsys.readouterr().err == (
        "error: baselines 'two.json': got no metric that 'one.json' has too, expected the same tests in both: compare "
        "runs of the same tests\n"
    )


@pytest.mark.parametrize("empty", ["one", "two"])
def test_a_file_without_figures_is_an_error(empty: str, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("one", "two"):
        file(name, {} if name == empty else {A: {"time": time(1.0)}})
    assert main(["compare", "one.json", "two.json"]) == 1
    assert capsys.readouterr().err == (
        f"error: baselines '{empty}.json': got no launch with metrics, expected one or more: name a file of a run "
        "that measured on GPUs; --smoke and runs on CPUs keep none\n"
    )
    Path("nothing.json").touch()
    assert main(["compare", "nothing.json", "two.json"]) == 1
    assert "error: baselines 'nothing.json': " in capsys.readouterr().err
