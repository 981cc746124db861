"""``--soak SECONDS``: the suites' soaks go on for so long."""

import re
from pathlib import Path

import pytest

from tests.whole_run import ROOT, run_pytest

SOAK = "suites/collectives/test_soak.py"


def test_a_soak_takes_as_long_as_is_asked(tmp_path: Path) -> None:
    leases = f"gpuperf_leases={tmp_path}"
    run = run_pytest(ROOT, f"{SOAK}::test_soak", "-k", "2ranks", "--soak", "1.8", "--durations=0", "-o", leases)
    assert list(run.outcomes.values()) == ["PASSED"], run.text
    seconds = re.search(r"([\d.]+)s call", run.text)
    assert seconds is not None
    assert float(seconds[1]) >= 1.8


@pytest.mark.parametrize("value", ["-1", "inf", "nan", "long"])
def test_what_is_no_number_of_seconds_is_refused(value: str) -> None:
    run = run_pytest(ROOT, SOAK, f"--soak={value}", "--collect-only")
    assert f"--soak takes seconds, 0 or more, got '{value}'" in run.text
