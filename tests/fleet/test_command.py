"""``python -m pytest_gpuperf fleet``: what it prints, what it exits with, its OpenMetrics text, and bad input."""

import re
from pathlib import Path

import pytest

from pytest_gpuperf.__main__ import main
from pytest_gpuperf.features.fleet.component import find_component
from tests.fleet.hosts import KEY, TEST, result
from tests.fleet.test_outliers import scattered

HOSTS = 40


def fleet(folder: Path, slow: float = 1.0, name: str = "busbw", limit_name: str = "nv18") -> list[str]:
    values = scattered(HOSTS, 0.005)
    values[17] *= slow
    return [
        str(result(folder, f"node{index}", {name: value}, limit_name=limit_name)) for index, value in enumerate(values)
    ]


def test_the_slow_host_and_its_slow_part_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fleet", *fleet(tmp_path, slow=0.9)]) == 1
    first, second, last = capsys.readouterr().out.splitlines()
    assert first == "slow: node17: links between GPUs"
    assert second.startswith(f"  {TEST} busbw: ")
    assert re.search(
        r"GB/s is (9|10)\.\d % worse than the median \d+\.\d+ GB/s of 40 hosts \(z \d\d\.\d, spread 0\.\d %\)$", second
    )
    assert re.fullmatch(
        rf"40 hosts of {KEY}, 1 metric compared: 1 slow; a loss of \d\.\d % is seen in half of the metrics", last
    )


def test_a_fleet_that_is_well(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fleet", *fleet(tmp_path)]) == 0
    assert "1 metric compared: none slow" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "unit", "limit_name", "part"),
    [
        ("busbw", "B/s", "nv18", "links between GPUs"),
        ("busbw", "B/s", "sys", "links between GPUs"),
        ("read", "B/s", "memory", "GPU memory"),
        ("to_gpu", "B/s", "PCIe", "PCIe"),
        ("mfu", "FLOP/s", "matrix units", "GPU"),
        ("tflops_of_gpu3", "FLOP/s", "", "GPU 3"),
        ("power_of_3", "W", "", "GPU 3"),
        ("pair_0_to_3", "B/s", "nv18", "link 0-3"),
        ("copy_gpu0-gpu3", "B/s", "", "link 0-3"),
        ("time", "s", "", "host"),
        ("alpha", "s", "", "host"),
    ],
)
def test_the_part_that_a_figure_depends_on(name: str, unit: str, limit_name: str, part: str) -> None:
    assert str(find_component(name, unit, limit_name)) == part


def test_a_gpu_of_a_host_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fleet", *fleet(tmp_path, 0.9, "read_of_gpu5", "memory")]) == 1
    assert capsys.readouterr().out.startswith("slow: node17: GPU 5\n")


def test_hosts_of_one_name_are_told_apart_by_their_gpus(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    values = [*scattered(20, 0.005), 80e9]
    files = [str(result(tmp_path, "vm", {"busbw": value}, gpus=f"{index:02d}")) for index, value in enumerate(values)]
    assert main(["fleet", *files]) == 1
    assert capsys.readouterr().out.startswith("slow: vm/20: links between GPUs\n")


def test_what_is_not_compared_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = fleet(tmp_path)
    files += [str(result(tmp_path, "new", {"busbw": 50e9}, body="body-2"))]
    files += [str(result(tmp_path, f"node{index}", {"busbw": 100e9, "other": 1e9})) for index in range(3)]
    assert main(["fleet", *files]) == 0
    printed = capsys.readouterr().out
    assert "not compared: 1 metric of fewer than 5 hosts\n" in printed
    assert f"left out: {TEST} busbw: another test body, unit, direction or clock on new\n" in printed


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"key": "8x-nvidia-h100-nv18"}, f"is of '8x-nvidia-h100-nv18', expected '{KEY}' as in "),
        ({"watts": 500.0}, "their metrics cannot be compared"),
    ],
)
def test_hosts_of_different_hardware(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: dict[str, object], error: str
) -> None:
    files = [*fleet(tmp_path), str(result(tmp_path, "odd", {"busbw": 1e11}, **change))]  # type: ignore[arg-type]
    assert main(["fleet", *files]) == 1
    printed = capsys.readouterr().err
    assert printed.startswith(f"error: results '{tmp_path}/odd.json': ")
    assert error in printed


@pytest.mark.parametrize(("text", "error"), [(None, "there is no such file"), ("{}", "expected a key 'results'")])
def test_a_file_that_is_no_result(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str | None, error: str
) -> None:
    if text is not None:
        (tmp_path / "bad.json").write_text(text)
    assert main(["fleet", str(tmp_path / "bad.json")]) == 1
    assert error in capsys.readouterr().err


def test_a_host_without_figures_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fleet", *fleet(tmp_path), str(result(tmp_path, "idle", {}))]) == 1
    assert capsys.readouterr().err == (
        f"error: results '{tmp_path}/idle.json': got no launch with metrics, expected one or more: name a file of "
        "a run that measured on GPUs; --smoke and runs on CPUs keep none\n"
    )


def test_too_few_hosts_to_compare_are_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fleet", *fleet(tmp_path)[:4], "--openmetrics", str(tmp_path / "fleet.prom")]) == 1
    printed = capsys.readouterr()
    assert printed.err == (
        "error: no metric could be compared: got 1 metric of 4 hosts, expected a metric that 5 hosts or more measured: "
        "name the results of more hosts, of runs of the same tests\n"
    )
    assert printed.out == ""
    assert not (tmp_path / "fleet.prom").exists()


LABEL = r'[a-z_]+="(?:[^"\\\n]|\\[\\n"])*"'
SAMPLE = re.compile(rf"([a-z_]+)\{{{LABEL}(?:,{LABEL})*\}} (-?[0-9.e+-]+)")


def test_openmetrics_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "fleet.prom"
    main(["fleet", *fleet(tmp_path, slow=0.9, name='odd"\\name'), "--openmetrics", str(target)])
    assert f"OpenMetrics text written to {target}" in capsys.readouterr().out
    *lines, end, empty = target.read_text().split("\n")
    assert (end, empty) == ("# EOF", "")
    families: dict[str, int] = {}
    for line in lines:
        if line.startswith("# TYPE "):
            _, _, family, kind = line.split()
            assert kind == "gauge"
            assert family not in families
            families[family] = 0
        elif not line.startswith("# HELP "):
            match = SAMPLE.fullmatch(line)
            assert match is not None, line
            assert match[1] == list(families)[-1]  # samples of a family follow its type
            families[match[1]] += 1
    assert families == {
        "gpuperf_fleet_hosts": 1,
        "gpuperf_figure": HOSTS,
        "gpuperf_fleet_loss": HOSTS,
        "gpuperf_fleet_z": HOSTS,
        "gpuperf_fleet_slow": HOSTS,
    }
    assert r'figure="odd\"\\name"' in lines[-1]
    slow = [line for line in lines if line.startswith("gpuperf_fleet_slow") and line.endswith(" 1.0")]
    assert len(slow) == 1
    assert 'host="node17"' in slow[0]


def test_openmetrics_text_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["fleet", *fleet(tmp_path), "--openmetrics", str(tmp_path / "no/fleet.prom")])
    assert ended.value.code == 2
    assert "cannot write" in capsys.readouterr().err
