"""Lines of a module that no test runs are named, but not those that only raise or tell something."""

from __future__ import annotations

import textwrap

import pytest

from benchmarks.torch_coverage import main, report

SOURCE = textwrap.dedent(
    '''\
    def used(x, option):
        """Says what it does."""
        if option:
            x = x + 1
        if x < 0:
            logger.warning("negative")
            raise ValueError(x)
        return x

    def unused():
        return 1
    '''
)


def test_what_no_test_runs_is_named() -> None:
    assert list(report("module", SOURCE, {3, 5, 8})) == [
        "module: 3 of 5 lines",
        "  used: 1 of 4 lines not run",
        "    4: x = x + 1",
        "  unused: not entered",
    ]


def test_what_is_no_module_is_refused(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object() if name == "coverage" else None)
    with pytest.raises(SystemExit):
        main(["torch.none"])
    assert "torch.none is no module with Python source: name one as torch.optim.adam" in capsys.readouterr().err


def test_without_coverage_its_installation_is_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SystemExit):
        main(["torch"])
    assert "coverage is not installed: pip install coverage" in capsys.readouterr().err
