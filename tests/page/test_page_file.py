"""``python -m pytest_gpuperf report``: a page of results files."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_gpuperf.__main__ import main
from pytest_gpuperf.baselines.json_files import update
from pytest_gpuperf.baselines.plain import make_plain, read
from pytest_gpuperf.features.page import page_file
from pytest_gpuperf.report.kinds import KINDS
from pytest_gpuperf.report.results_file import Raced, load, write
from pytest_gpuperf.traces.profile import Profile
from tests.page.examples import (
    CURVE,
    KEY,
    MATRIX,
    PROFILE,
    REGRESSED,
    SAME,
    SEARCH,
    SKIPPED,
    SUMMARY,
    TOPOLOGY,
    results,
)

PLAIN: dict[str, Any] = make_plain(PROFILE)


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def stored(path: str, at: str = "2026-11-20T10:00:00Z") -> str:
    write(Path(path), results(REGRESSED, SAME, at=at, curves=(CURVE,), matrices=(MATRIX,)))
    return path


def test_a_page_of_one_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", stored("results.json")]) == 0
    assert capsys.readouterr().out == "page of 1 run written to gpuperf.html\n"
    assert "<dt>results</dt>" in Path("gpuperf.html").read_text()


def test_runs_are_named_by_what_tells_their_files_apart(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", stored("a/r.json"), stored("b/r.json", "2026-11-21T10:00:00Z"), "-o", "out/page.html"]) == 0
    assert "page of 2 runs written to out/page.html" in capsys.readouterr().out
    text = Path("out/page.html").read_text()
    assert text.index("<dt>b/r</dt>") < text.index("<dt>a/r</dt>")  # the newest first


def test_the_page_knows_the_baselines() -> None:
    candidate = results(SAME, environment={"torch": "2.9.0"}).candidate
    update(Path("kept") / f"{KEY}.json", KEY, lambda _: replace(candidate, hardware_key=KEY))
    main(["report", stored("results.json"), "--baselines", "kept"])
    assert "<td>2.11.0</td><td>2.9.0</td>" in Path("gpuperf.html").read_text()
    (Path("kept") / f"{KEY}.json").write_text("{broken")
    assert main(["report", "results.json", "--baselines", "kept"]) == 0
    assert "<td>2.9.0</td>" not in Path("gpuperf.html").read_text()


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "there is no such file: check the path, or write the file again with pytest --gpuperf-json=FILE"),
        ("{", "expected JSON: check the path"),
        (json.dumps({"results": 99}), "results schema 99 is newer than this version reads (1): upgrade pytest-gpuperf"),
        (json.dumps({"results": 1}), "expected a key 'hardware_key'"),
    ],
)
def test_a_file_that_is_none_of_results_is_refused(
    content: str | None, problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if content is not None:
        Path("bad.json").write_text(content)
    assert main(["report", "bad.json"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: results 'bad.json': ")
    assert problem in error
    assert not Path("gpuperf.html").exists()


def test_profiles_and_topology_are_read_as_they_were_written() -> None:
    whole = results(SAME, profiles=(PROFILE,), topology=TOPOLOGY)
    write(Path("r.json"), whole)
    found = load(Path("r.json"))
    assert found.topology == TOPOLOGY
    assert [read(Profile, one, "profile") for one in found.shown["profiles"]] == [PROFILE]


def test_what_a_run_came_to_as_a_whole_is_read_as_it_was_written() -> None:
    write(Path("r.json"), replace(results(SAME), summary=SUMMARY))
    assert load(Path("r.json")).summary == SUMMARY
    write(Path("other.json"), results(SAME))
    assert "summary" not in json.loads(Path("other.json").read_text())
    assert load(Path("other.json")).summary is None


def test_a_race_and_a_smoke_run_are_read_as_they_were_written() -> None:
    raced = Raced("2026-11-20T10:00:00Z", "gpu-a", "v1.0", "7ba55cce", "c0ffee00", dirty=True)
    write(Path("r.json"), replace(results(SAME), raced=raced, smoke=True))
    assert (load(Path("r.json")).raced, load(Path("r.json")).smoke) == (raced, True)
    write(Path("other.json"), results(SAME))
    assert (load(Path("other.json")).raced, load(Path("other.json")).smoke) == (None, False)


def test_the_properties_of_a_test_are_read_as_they_were_written() -> None:
    ran = replace(SKIPPED, outcome="passed", properties={"soak products": 39000, "rate": 1.5, "kind": "sums"})
    write(Path("r.json"), results(SAME, ran=[ran, SKIPPED]))
    assert load(Path("r.json")).ran == (ran, SKIPPED)
    assert ["properties" in one for one in json.loads(Path("r.json").read_text())["ran"]] == [True, False]


@pytest.mark.parametrize(
    ("key", "broken", "problem"),
    [
        ("topology", {"gpus": ["a"], "paths": [{"first": 0, "second": 3, "label": "NV18"}]}, "paths name GPUs [0, 3]"),
        ("profiles", [{"test": "t", "arm": "a"}], "file.shown.profiles[0]: got ['arm', 'test'], expected a key 'file'"),
        (
            "profiles",
            [{**PLAIN, "lanes": [{"rank": 0, "kind": "copy", "track": "t", "intervals": [[0.0, 1e300, "n"]]}]}],
            "got an interval of 1e+300 s at 0.0 s, expected at most 1e+06 s",
        ),
        (
            "curves",
            [CURVE, {**CURVE, "seconds": [1e-5]}],
            "shown.curves[1]: got [10, 1, 10, 10] sizes, seconds, quartiles and bandwidths, expected as many of each",
        ),
        ("curves", [{**CURVE, "half_size": 0.0}], "file.shown.curves[0].half_size: got 0.0, expected a number above 0"),
        ("matrices", [{**MATRIX, "rows": [[None, 1.0]]}], "file.shown.matrices[0]: matrix has rows of [2] metrics"),
        (
            "searches",
            [{**SEARCH, "trials": [SEARCH["trials"][-1]]}],
            "file.shown.searches[0]: got 1 trials without seconds, expected one at least that ran",
        ),
        ("summary", {**SUMMARY, "rows": [["a"]]}, "file.summary.rows[0]: got ['a'], expected more values"),
    ],
)
def test_a_part_that_makes_no_sense_is_refused(
    key: str, broken: object, problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    data = json.loads(Path(stored("r.json")).read_text())
    changed = {key: broken} if key in ("topology", "summary") else {"shown": {key: broken}}
    Path("r.json").write_text(json.dumps({**data, **changed}))
    assert main(["report", "r.json"]) == 1
    assert problem in capsys.readouterr().err


def test_profiles_are_checked_without_the_feature_that_makes_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(page_file, "list_shown", lambda: list(KINDS))
    data = json.loads(Path(stored("r.json")).read_text())
    Path("r.json").write_text(json.dumps({**data, "shown": {"profiles": [{"test": "t"}]}}))
    assert main(["report", "r.json"]) == 1
    assert "results 'r.json': file.shown.profiles[0]: got ['test'], expected a key" in capsys.readouterr().err


def test_a_file_is_named_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", stored("a.json"), "a.json"]) == 1
    assert capsys.readouterr().err == "error: results 'a.json': it is given twice: name each file once\n"


def test_a_page_that_cannot_be_written(capsys: pytest.CaptureFixture[str]) -> None:
    Path("file").touch()
    assert main(["report", stored("a.json"), "-o", "file/page.html"]) == 1
    assert "cannot be written" in capsys.readouterr().err


def test_2000_figures_are_a_page() -> None:
    many = [replace(REGRESSED, test=f"t.py::test_{number}") for number in range(2000)]
    write(Path("many.json"), results(*many))
    assert main(["report", "many.json"]) == 0
    assert Path("gpuperf.html").read_text().count('<details class="test"') == 2000
