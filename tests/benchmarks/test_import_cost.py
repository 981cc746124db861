"""A pytest run that uses nothing of the plugin loads little of it."""

import pytest

from benchmarks import import_cost


def test_a_run_without_ranks_loads_few_modules(capsys: pytest.CaptureFixture[str]) -> None:
    import_cost.main(["--rounds", "1"])
    rows = {line.split()[0]: int(line.split()[-1]) for line in capsys.readouterr().out.splitlines()[1:]}
    assert 0 < rows["pytest_gpuperf"] <= import_cost.MOST_MODULES
    assert rows["xdist"] > 0
    assert rows["pytest_benchmark"] > 0


def test_too_many_modules_fail_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_cost, "measure", lambda rounds: {"pytest_gpuperf": (0.0, 61)})
    assert import_cost.main(["--check"]) == 1
    assert import_cost.main([]) == 0
