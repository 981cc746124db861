"""The page, the values for the results file and the remarks of communication coverage, of values made by hand."""

import re
from pathlib import Path

from pytest_gpuperf.features.mutating.coverage import Coverage, Judged, Outcome
from pytest_gpuperf.features.mutating.faults import Calls, Family, Fault, Kind, Site
from pytest_gpuperf.features.mutating.form import make_form
from pytest_gpuperf.features.mutating.page import list_files, render_html
from pytest_gpuperf.features.mutating.remarks import iterate_remarks
from pytest_gpuperf.features.mutating.source_calls import Call
from pytest_gpuperf.report.annotation import Annotation

TEST = "test_it.py::test_<b>"


def coverage(folder: Path) -> Coverage:
    bad, good, gone = (str(folder / name) for name in ("bad.py", "good.py", "gone.py"))
    (folder / "bad.py").write_text("x = '<script>'\nall_reduce(x)\nall_reduce(y)\nsend(x)\n")
    (folder / "good.py").write_text("all_gather(x)\n")
    made = Coverage(seconds=1.2, left_out={"test_it.py::test_odd": "two runs of it differ"})
    made.left_over = {Fault(Site("", line, "", "", 0), Kind.MAX) for line in (1, 2, 3)}
    first, second = Site(bad, 2, "all_reduce", "", 0), Site(bad, 3, "all_reduce", "tp", 0)
    third, fourth = Site(good, 1, "all_gather", "", 0), Site(gone, 7, "send", "", 0)
    for site in (first, second, third, fourth):
        made.see(site, Calls(Family.REDUCE, 2, 2, True), TEST)
    made.judged = [
        Judged(Fault(first, Kind.SKIPPED), Outcome.UNNOTICED),
        Judged(Fault(first, Kind.TAIL), Outcome.NOTICED, TEST),
        Judged(Fault(second, Kind.SKIPPED), Outcome.NOTICED, TEST),
        Judged(Fault(third, Kind.SKIPPED), Outcome.NOTICED, TEST),
        Judged(Fault(third, Kind.STALE), Outcome.EQUIVALENT),
        Judged(Fault(fourth, Kind.SKIPPED), Outcome.NOT_MADE),
    ]
    made.calls = {Call(bad, 4, 4, "send")}
    return made


def test_lines_of_the_source_are_coloured_by_what_became_of_their_faults(tmp_path: Path) -> None:
    bad, gone, good = list_files(coverage(tmp_path), tmp_path)
    assert [(line.number, line.state) for line in bad.lines] == [
        (1, ""),
        (2, "unnoticed"),
        (3, "noticed"),
        (4, "unreached"),
    ]
    assert bad.lines[1].notes == ("all_reduce: 1 of 2 faults noticed; unnoticed: call skipped; reached by test_<b>",)
    assert bad.lines[2].notes == ("all_reduce over tp: 1 of 1 faults noticed",)
    assert bad.lines[3].notes == ("no observed program calls send",)
    assert (bad.noticed, bad.counted, bad.unreached) == (2, 3, 1)
    assert [line.state for line in good.lines] == ["noticed"]
    assert gone.lines == ()
    assert gone.share is None


def test_the_page_lists_the_worst_file_first_and_escapes_the_source(tmp_path: Path) -> None:
    text = render_html(coverage(tmp_path), tmp_path)
    assert re.findall(r'<a href="#file\d">(.*?)</a>', text) == ["bad.py", "gone.py", "good.py"]
    assert "3 of 4 faults noticed (75 %)" in text
    assert "The time was up before 3 more." in text
    assert "<script>" not in text
    assert "&lt;script&gt;" in text
    assert "reached by test_&lt;b&gt;" in text
    assert '<tr class="unnoticed"><td>2</td><td>all_reduce(x)<ul>' in text
    assert "test_it.py::test_odd: two runs of it differ" in text
    assert "the source cannot be read" in text


def test_the_results_file_has_each_fault_of_each_site(tmp_path: Path) -> None:
    form = make_form(coverage(tmp_path), tmp_path)
    counts = ("noticed", "unnoticed", "equivalent", "not_made", "left_over")
    assert [form[name] for name in counts] == [3, 1, 1, 1, 3]
    assert form["sites"][0] == {
        "file": "bad.py",
        "line": 2,
        "operation": "all_reduce",
        "over": "",
        "part": 0,
        "calls": 2,
        "tests": [TEST],
        "faults": [
            {"kind": "call skipped", "outcome": "unnoticed", "by": "", "seconds": 0.0},
            {"kind": "tail not sent", "outcome": "noticed", "by": TEST, "seconds": 0.0},
        ],
    }
    assert form["unreached"] == [{"file": "bad.py", "line": 4, "operation": "send"}]
    assert form["left_out"] == {"test_it.py::test_odd": "two runs of it differ"}


def test_lines_with_unnoticed_faults_and_calls_that_no_program_makes_have_remarks(tmp_path: Path) -> None:
    assert list(iterate_remarks(coverage(tmp_path))) == [
        Annotation(
            tmp_path / "bad.py",
            2,
            "1 of 2 faults unnoticed in all_reduce",
            "call skipped\nreached by test_<b>",
        ),
        Annotation(tmp_path / "bad.py", 4, "no observed program calls send", "no test guards it"),
    ]
