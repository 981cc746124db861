"""The page's example runs, and prints what the page shows."""

from __future__ import annotations

import re
from pathlib import Path

from tests.whole_run import ROOT, run_pytest, write

_PAGE = ROOT / "docs" / "is-it-rounding.md"


def test_the_example_prints_what_the_page_shows(tmp_path: Path) -> None:
    page = _PAGE.read_text()
    file, source = re.findall(r"^`(\w+\.py)`\n\n```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)[0]
    shown = re.findall(r"^```\n(parity: .*?)^```$", page, re.MULTILINE | re.DOTALL)[0]
    run = run_pytest(write(tmp_path, {file: source}))
    assert run.outcomes == {
        "test_data_parallel[2ranks-]": "PASSED",
        "test_data_parallel[2ranks-1.weight]": "FAILED",
    }, run.text
    report = run.report("test_data_parallel[2ranks-1.weight]")
    lines = [line.removeprefix("E ").strip() for line in report.splitlines()]
    # Numbers depend on the seed, which is the test's name; the last line goes on with how to declare it.
    exact = {_without_numbers(line) for line in lines}
    for line in shown.splitlines():
        bare = _without_numbers(line.strip())
        assert any(one.startswith(bare) or one.endswith(bare) for one in exact), line


def _without_numbers(line: str) -> str:
    return re.sub(r"\d\S*", "#", line)
