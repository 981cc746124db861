"""The table of the suites and the numbers of their pages are what a collection counts."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from suites import table
from suites.shared.dealing import DEALT
from tests.whole_run import ROOT, environment


def run(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "suites.table", *args]
    here = environment(PYTHONPATH=f"{folder}:{ROOT}")
    return subprocess.run(command, cwd=folder, env=here, capture_output=True, text=True, timeout=120, check=False)


def test_the_table_is_up_to_date() -> None:
    done = run(ROOT, "--check")
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_row_counts_each_variant_once_by_its_marks(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.ranks(2, 3)
        def test_everywhere(ranks): ...

        @pytest.mark.parametrize("x", [1, 2])
        @pytest.mark.ranks(2, device="cuda")
        def test_on_gpus(ranks, x): ...

        @pytest.mark.perf
        @pytest.mark.ranks(2, 4, 8, device="cuda")
        def test_of_speed(perf): ...

        def test_without_ranks(): ...
        """
    )
    items, _ = pytester.inline_genitems()
    for item in items[:2]:
        item.stash[DEALT] = 25
    row = table.Row()
    for item in items:
        row.add(item)
    assert row.cells() == ["3", "2", "3", "1", "50", ""]
    row.caught, row.faults = 4, 5
    assert table.table([("b", row), ("a", table.Row())]).splitlines() == [
        "| subject | tests on CPUs and GPUs | on GPUs only | of speed | drawn tests | examples in CI | faults caught |",
        "|---|---|---|---|---|---|---|",
        "| [a](a.md) | | | | | | |",
        "| [b](b.md) | 3 | 2 | 3 | 1 | 50 | 4 of 5 |",
    ]


def test_a_test_of_each_device_counts_once_on_every_machine(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.parametrize("port", ["mlx5_0:1", "mlx5_1:1"])
        @pytest.mark.ranks(2, device="cuda")
        def test_one(ranks, port): ...

        @pytest.mark.parametrize("port", ["mlx5_0:1", "mlx5_1:1"])
        @pytest.mark.ranks(2, device="cuda")
        def test_other(ranks, port): ...
        """
    )
    items, _ = pytester.inline_genitems()
    row = table.Row()
    for item in items:
        row.add(item)
    assert row.cells() == ["", "2", "", "", "", ""]


def test_faults_are_those_that_were_tried(tmp_path: Path) -> None:
    outcomes = {"scan": ["caught", "passed", "equivalent", "caught"], "megatron": ["skipped"], "gone": ["caught"]}
    entries = [
        {"subject": subject, "fault": "a lost sum", "outcome": one, "test": "suites/scan/test_it.py::test_sum[2ranks]"}
        for subject, all_ in outcomes.items()
        for one in all_
    ]
    recorded = tmp_path / "faults.json"
    recorded.write_text(json.dumps(entries))
    rows = {"scan": table.Row(tests={"suites/scan/test_it.py::test_sum[2ranks]"}), "megatron": table.Row()}
    table.add_faults(rows, recorded)
    assert {name: row.cells()[-1] for name, row in rows.items()} == {"scan": "2 of 3", "megatron": ""}


def test_a_fault_whose_test_is_gone_is_tried_again(tmp_path: Path) -> None:
    """CI would find it only if its sample had the fault."""
    entry = {"subject": "scan", "fault": "a lost sum", "outcome": "caught", "test": "suites/scan/test_it.py::test_sum"}
    recorded = tmp_path / "faults.json"
    recorded.write_text(json.dumps([entry]))
    message = (
        "faults.json: the fault 'a lost sum' was caught by suites/scan/test_it.py::test_sum, which is no test now. "
        "Try it again: python benchmarks/mutations.py --subject scan --fault 'a lost sum' "
        "--json docs/suites/faults.json"
    )
    with pytest.raises(SystemExit, match=f"^{re.escape(message)}$"):
        table.add_faults({"scan": table.Row(tests={"suites/scan/test_it.py::test_sum[2ranks]"})}, recorded)


def test_rows_go_between_the_markers() -> None:
    page = f"before\n{table.BEGIN}old\n{table.END}after\n"
    assert table.replaced(page, "new\n") == f"before\n{table.BEGIN}new\n{table.END}after\n"
    with pytest.raises(
        ValueError, match=r"^the page needs the lines '<!-- written by .*' and '<!-- end of the table -->'"
    ):
        table.replaced(page.replace(table.END, ""), "new\n")


def out_of_date(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    page = tmp_path / "docs" / "README.md"
    page.parent.mkdir()
    page.write_text(f"{table.BEGIN}{table.END}")
    monkeypatch.setattr(table, "ROOT", tmp_path)
    monkeypatch.setattr(table, "PAGE", page)
    monkeypatch.setattr(table, "FAULTS", tmp_path / "none.json")
    monkeypatch.setattr(table, "counted", lambda: {"scan": table.Row(everywhere=2)})
    return page


def test_a_table_that_is_out_of_date_is_not_touched_by_the_check(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    page = out_of_date(monkeypatch, tmp_path)
    before = page.read_text()
    message = r"^docs/README\.md is out of date, write its numbers again: python -m suites\.table$"
    with pytest.raises(SystemExit, match=message):
        table.main(["--check"])
    assert page.read_text() == before


def test_a_table_that_is_out_of_date_is_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    page = out_of_date(monkeypatch, tmp_path)
    table.main([])
    assert "| [scan](scan.md) | 2 | | | | | |\n" in page.read_text()
    table.main(["--check"])  # and is not out of date any more


def test_a_subjects_page_has_its_number_of_faults(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    page = out_of_date(monkeypatch, tmp_path)
    rows = {"scan": table.Row(caught=4, faults=5), "new": table.Row(), "plain": table.Row(caught=1, faults=1)}
    monkeypatch.setattr(table, "counted", lambda: rows)
    for name, text in (("scan", "# Scan\n\nRecorded faults caught: 0 of 0\n"), ("plain", "# Plain\n")):
        page.with_name(f"{name}.md").write_text(text)
    page.write_text(table.replaced(page.read_text(), table.table(rows.items())))  # only a subject's page is out of date
    message = r"^docs/scan\.md is out of date, write its numbers again: python -m suites\.table$"
    with pytest.raises(SystemExit, match=message):
        table.main(["--check"])
    table.main([])
    line = "Recorded faults caught: 4 of 5 (in `benchmarks/mutants/faults/scan`).\n"
    assert page.with_name("scan.md").read_text() == f"# Scan\n\n{line}"
    assert page.with_name("plain.md").read_text() == "# Plain\n"
    assert table.with_faults("Recorded faults caught: 1 of 1\n", "new", rows["new"]) == (
        "Recorded faults caught: none are recorded.\n"
    )
    table.main(["--check"])


def test_suites_that_cannot_be_collected_are_no_empty_table(tmp_path: Path) -> None:
    (tmp_path / "suites" / "shared").mkdir(parents=True)
    for name in ("__init__.py", "table.py", "shared/__init__.py", "shared/dealing.py"):
        (tmp_path / "suites" / name).write_bytes((ROOT / "suites" / name).read_bytes())
    (tmp_path / "suites" / "test_it.py").write_text("import nowhere\n")
    (tmp_path / "docs" / "suites").mkdir(parents=True)
    (tmp_path / "docs" / "suites" / "README.md").write_text(f"{table.BEGIN}{table.END}")
    done = run(tmp_path)
    assert done.returncode == 1
    assert "No module named 'nowhere'" in done.stderr
    assert "the suites could not be collected: pytest exits with 2" in done.stderr
