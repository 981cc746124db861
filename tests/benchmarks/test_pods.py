"""The table of one pod beside pods of one GPU."""

from __future__ import annotations

import pytest

from benchmarks import pods
from benchmarks.pods import Start, figures, main, rows


def verdict(test: str, metric: str, value: float, unit: str) -> dict[str, object]:
    return {"test": test, "metric_name": metric, "metric": {"value": value, "unit": unit}}


def test_figures_have_the_subject_the_test_and_the_metric() -> None:
    found = [verdict("suites/llm_step/test_performance.py::test_step[2ranks]", "tokens", 214_203.7, "token/s")]
    assert figures({"verdicts": found}) == {"llm_step test_step[2ranks] tokens": "2.142e+05 token/s"}


def test_each_start_is_a_column_and_what_it_lacks_is_empty() -> None:
    one = Start("one pod, Slurm", 43.4, {"NCCL takes": "P2P/CUMEM", "p2p": "1 s"})
    each = Start("a pod each, Slurm", 84.2, {"NCCL takes": "NET/Socket", "net": "2 s"})
    assert rows([one, each]) == [
        ["", "one pod, Slurm", "a pod each, Slurm"],
        ["NCCL takes", "P2P/CUMEM", "NET/Socket"],
        ["p2p", "1 s", ""],
        ["net", "", "2 s"],
        ["seconds in all", "43", "84"],
    ]


def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(pods, "lacking", lambda launcher: "needs slurmctld (package slurm-wlm)")
    with pytest.raises(SystemExit):
        main(["--gpus", "2", "--launchers", "srun"])
    assert "error: needs slurmctld (package slurm-wlm)" in capsys.readouterr().err
