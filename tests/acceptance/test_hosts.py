"""``accept --cluster``: what it makes of the slow parts that the suite's test has recorded."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from pytest_gpuperf.__main__ import main
from pytest_gpuperf.baselines.schema import Baselines
from pytest_gpuperf.features.acceptance import hosts
from pytest_gpuperf.features.acceptance.command import Wanted
from pytest_gpuperf.features.acceptance.hosts import SlowPart, accept_hosts, drain_lines, format_verdict
from pytest_gpuperf.features.acceptance.phases import Ended
from pytest_gpuperf.features.fleet.acceptance import Slow
from pytest_gpuperf.report.ran import Ran
from pytest_gpuperf.report.results_file import Results

HOST = Slow("host", "gpu03", "pairs", 0.898, float("nan"))
GPU = Slow("GPU", "gpu04 GPU 5", "matrix products", 0.31, 12.3)
LINK = Slow("link", "gpu01 - gpu02", "pairs", 0.5, float("nan"))
SLURM = {"SLURM_JOB_NODELIST": "gpu[01-04]"}
CPUS = Wanted(0, False, None, None, None, "auto")


def parsed(*slow: Slow) -> list[SlowPart]:
    return [SlowPart.parse(str(one)) for one in slow]


def test_hosts_of_slow_parts_are_named_once_and_a_link_accuses_no_host() -> None:
    lines = format_verdict(parsed(HOST, GPU, LINK, HOST), [])
    assert lines[0] == "unfit: gpu03, gpu04"
    assert lines[1] == "host gpu03: 89.8 % slower than the other hosts in pairs"
    assert lines[2].startswith("GPU gpu04 GPU 5: 31.0 % slower")
    assert format_verdict(parsed(LINK), [])[0] == "unfit"
    assert format_verdict([], ["2 bytes are wrong"]) == ["unfit", "2 bytes are wrong"]
    assert format_verdict([], []) == ["fit: no host, GPU or link is slow"]


def test_slurm_drains_each_slow_host_with_its_worst_part() -> None:
    second = Slow("host", "gpu03", "copies in memory", 0.2, float("nan"))
    first, other = (shlex.split(line) for line in drain_lines(parsed(HOST, second, GPU, LINK), SLURM))
    assert first[:4] == ["scontrol", "update", "nodename=gpu03", "state=drain"]
    assert first[4] == "reason=gpuperf: host gpu03: 89.8 % slower than the other hosts in pairs"
    assert other[2] == "nodename=gpu04"
    assert drain_lines(parsed(HOST), {}) == []
    assert drain_lines(parsed(HOST), {"SLURM_JOB_NODELIST": "n[1-4]"}) == []


def test_a_host_with_a_domain_is_slurms_node_without_it() -> None:
    (line,) = drain_lines(parsed(Slow("host", "gpu03.cluster.local", "pairs", 0.5, 9.0)), SLURM)
    assert "nodename=gpu03 " in line


def ended(*ran: Ran) -> Ended:
    return Ended(Results(Baselines("cpu", {}), (), ran=ran), 1, "the last lines")


@pytest.mark.parametrize(
    ("end", "status", "said"),
    [
        (ended(Ran("a", "passed"), Ran("b", "skipped")), 0, "fit: no host, GPU or link is slow"),
        (ended(Ran("a", "failed", properties={"slow": str(HOST)})), 1, "unfit: gpu03"),
        (ended(Ran("a", "failed", reason="AssertionError: wrong")), 1, "unfit\nAssertionError: wrong"),
        (ended(Ran("a", "skipped", reason="one node")), 69, "error: the hosts were not measured: one node"),
        (Ended(None, 4, "no cluster"), 69, "error: the hosts were not measured: no cluster"),
    ],
)
def test_the_exit_status_is_that_of_a_health_check(
    end: Ended, status: int, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(hosts, "run", lambda *_: end)
    assert accept_hosts(CPUS, Path("/root"), SLURM) == status
    printed = capsys.readouterr().out
    assert said in printed
    assert ("scontrol" in printed) == ("gpu03" in said)


@pytest.mark.parametrize("options", [["--quick"], ["--soak", "1"], ["--report", "page.html"]])
def test_options_of_one_machine_are_refused(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["accept", "--cluster", "auto", *options]) == 2
    assert "--quick, --soak and --report are about one machine: drop them, or --cluster" in capsys.readouterr().err
