"""What ``benchmarks/adopted.py`` makes of two runs; the runs themselves take minutes."""

from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks.adopted import Run, compared, lost, read, run

REPORT = """<testsuites><testsuite>
<testcase classname="test_wheel.TestOne" name="test_passes" time="4.0" />
<testcase classname="test_wheel.TestOne" name="test_fails" time="1.0"><failure message="no" /></testcase>
<testcase classname="test_wheel.TestOne" name="test_skips" time="0.0"><skipped message="no" /></testcase>
</testsuite></testsuites>"""


def there() -> Run:
    return read(ElementTree.ElementTree(ElementTree.fromstring(REPORT)), 8.0)


def test_a_report_is_read_by_test() -> None:
    assert there().outcomes == {
        "TestOne::test_passes": "passed",
        "TestOne::test_fails": "failure",
        "TestOne::test_skips": "skipped",
    }


def test_a_test_that_passes_there_alone_is_lost_and_named() -> None:
    here = Run({**there().outcomes, "TestOne::test_passes": "failure"}, 2.0, there().seconds_of_tests)
    assert lost(there(), here) == ["TestOne::test_passes"]
    assert "  passed there, failure here: TestOne::test_passes" in compared(there(), here)
    assert lost(there(), there()) == []


def test_the_ratio_of_times_is_of_tests_that_pass_in_both() -> None:
    here = Run(there().outcomes, 2.0, {**there().seconds_of_tests, "TestOne::test_passes": 0.5})
    lines = compared(there(), here)
    assert "whole runs: 4.0x faster here" in lines
    assert lines[-1] == "the 1 tests that pass in both: 4000 ms there, 500 ms here on average, 8.0x faster"


def test_a_run_without_a_report_ends_with_what_pytest_printed(tmp_path: Path) -> None:
    (tmp_path / "report.xml").write_text(REPORT)  # of an earlier run
    with pytest.raises(SystemExit, match="pytest wrote no report; it printed:"):
        run([tmp_path / "test_it.py"], tmp_path, ["--no-such-option"], {})
