"""What is relied on of xdist: how a worker is known, and the name of its run."""

from pathlib import Path

from tests.whole_run import run_pytest, write

TESTS = """
import pytest
from pytest_gpuperf.options import Options, is_worker

@pytest.mark.parametrize("n", range(2))
def test_it(pytestconfig, testrun_uid, n):
    assert is_worker(pytestconfig)
    assert Options.from_config(pytestconfig).run == testrun_uid
"""

CONFTEST = """
from pytest_gpuperf.options import Options, is_worker

def pytest_sessionfinish(session):
    if not is_worker(session.config):
        print("\\nthe controller is no worker:", Options.from_config(session.config).run)
"""


def test_workers_know_their_run(tmp_path: Path) -> None:
    run = run_pytest(write(tmp_path, {"test_it.py": TESTS, "conftest.py": CONFTEST, "pytest.ini": "[pytest]"}), "-n2")
    run.result.assert_outcomes(passed=2)
    assert "the controller is no worker: None" in run.text
