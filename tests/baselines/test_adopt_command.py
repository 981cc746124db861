"""``python -m pytest_gpuperf adopt``: results of earlier runs become baselines."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_gpuperf.__main__ import main
from pytest_gpuperf.baselines import json_files
from pytest_gpuperf.baselines.schema import Baselines, LaunchFigure, MetricBaseline, TestBaseline
from pytest_gpuperf.figures.metric import Metric
from pytest_gpuperf.report import results_file
from pytest_gpuperf.report.results_file import Results
from pytest_gpuperf.verdicts.outcome import Outcome
from pytest_gpuperf.verdicts.verdict import Verdict
from tests.baselines.examples import KEY, launch
from tests.whole_run import environment

TEST = "suites/it.py::test_it[2ranks]"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The commands run in it."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def written(
    name: str,
    value: float = 100.0,
    *,
    count: int = 5,
    body: str = "body",
    key: str = KEY,
    test: str = TEST,
    at: str = launch().at,
    watts: float | None = 700.0,
) -> str:
    """A file of results of so many launches."""
    ids = [f"{name}-{index}" for index in range(count)]
    metric = MetricBaseline("B/s", "higher", "host", tuple(LaunchFigure(id_, 9, value) for id_ in ids))
    candidate = Baselines(
        key,
        {"gpu_count": 8, "power_limit_w": watts},
        {id_: replace(launch(), at=at) for id_ in ids},
        {test: TestBaseline(body, {"bw": metric})},
    )
    verdict = Verdict(test, "bw", Metric(value, "B/s", "higher"), Outcome.MISSING, key)
    results_file.write(Path(f"{name}.json"), Results(candidate, (verdict,)))
    return f"{name}.json"


def adopt(*arguments: str) -> int:
    return main(["adopt", "--reason", "from CI", *arguments])


def stored(folder: Path = Path("baselines")) -> Baselines:
    baselines = json_files.load(folder / f"{KEY}.json", KEY)
    assert baselines is not None
    return baselines


def medians() -> list[float]:
    return [figure.median for figure in stored().tests[TEST].metrics["bw"].launches]


def test_results_become_baselines(capsys: pytest.CaptureFixture[str]) -> None:
    assert adopt(written("one")) == 0
    assert capsys.readouterr().out == f"baselines of 1 test written to baselines/{KEY}.json\n"
    assert medians() == [100.0] * 5
    assert stored().match == {"gpu_count": 8, "power_limit_w": 700.0}
    (update,) = stored().updates
    assert (update.reason, update.mode, update.launches, update.tests) == ("from CI", "moved", 5, (TEST,))


def test_a_folder_whose_name_is_no_utf_8_is_printed_all_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    folder = os.fsdecode(b"base\xff")
    assert adopt(written("a"), "--baselines", folder) == 0
    assert list(stored(Path(folder)).tests) == [TEST]
    assert capsys.readouterr().out == f"baselines of 1 test written to base /{KEY}.json\n"


def test_it_is_a_command() -> None:
    command = [sys.executable, "-m", "pytest_gpuperf", "adopt", written("one"), "--reason=x", "--baselines=ours"]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert stored(Path("ours")).updates[0].reason == "x"


def test_launches_of_several_files_count_together_and_once(capsys: pytest.CaptureFixture[str]) -> None:
    one, two = written("one", count=4), written("two", count=1)
    assert adopt(one, one) == 1
    assert capsys.readouterr().out == (f"not written: {TEST}: 4 launches, expected at least 5\nno baselines written\n")
    assert adopt(one, two, one) == 0
    assert len(medians()) == 5


def test_fewer_launches_can_be_appended() -> None:
    adopt(written("one"))
    assert adopt(written("two", 101.0, count=1), "--mode=append") == 0
    assert medians() == [100.0] * 5 + [101.0]


def test_nothing_is_appended_twice_or_to_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert adopt(written("one"), "--mode=append") == 1
    assert not Path("baselines", f"{KEY}.json").exists()
    adopt(written("one"))
    assert adopt("one.json", "--mode=append") == 1
    assert f"not written: {TEST}: its entry has these launches already\n" in capsys.readouterr().out


def test_the_rules_are_those_of_an_update(capsys: pytest.CaptureFixture[str]) -> None:
    adopt(written("one"))
    capsys.readouterr()
    assert adopt(written("two", 90.0)) == 1
    loss = f"{TEST} bw regressed: 100.0 B/s -> 90.00 B/s, 10.0 % worse, bound 5.0 %"
    command = "the same command and --accept-regression"
    assert capsys.readouterr().out == f"not written: {loss}; accept it with: {command}\nno baselines written\n"
    assert adopt("two.json", "--mode=new") == 0
    assert medians() == [100.0] * 5
    assert adopt("two.json", "--minimum-slowdown=0.2") == 0
    assert adopt(written("three", 80.0), "--accept-regression") == 0
    assert medians() == [80.0] * 5


def test_a_loss_of_a_changed_body_is_accepted_expressly(capsys: pytest.CaptureFixture[str]) -> None:
    adopt(written("one"))
    assert adopt(written("two", 50.0, body="other")) == 1
    assert f"not written: {TEST} bw regressed: 100.0 B/s -> 50.00 B/s, 50.0 % worse" in capsys.readouterr().out
    assert adopt("two.json", "--accept-regression") == 0
    assert stored().updates[-1].accepted == (TEST,)


def test_results_of_an_older_body_are_not_adopted(capsys: pytest.CaptureFixture[str]) -> None:
    old, new = "2026-11-20T10:00:00Z", "2026-11-21T10:00:00Z"
    adopt(written("now", 100.0, at=new))
    capsys.readouterr()
    assert adopt(written("old", 200.0, body="other", at=old), "--accept-regression") == 1
    assert capsys.readouterr().out == (
        f"not written: {TEST}: the results are of another body than its entry, and older: got launches until {old}, "
        f"expected some after {new}: measure the test as it is now\nno baselines written\n"
    )
    assert medians() == [100.0] * 5
    assert adopt(written("same", 101.0, at=old)) == 0
    assert adopt(written("later", 200.0, body="other", at=new)) == 0


def test_results_of_two_bodies_do_not_belong_together(capsys: pytest.CaptureFixture[str]) -> None:
    assert adopt(written("one", count=3), written("two", body="other")) == 1
    problem = "the results do not belong together: the test's body was 'body' and is 'other'"
    assert f"not written: {TEST}: {problem}\n" in capsys.readouterr().out


def test_results_of_two_hardwares_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert adopt(written("one"), written("two", key="1x-nvidia-t4")) == 1
    assert capsys.readouterr().err == (
        f"error: results 'two.json': is of '1x-nvidia-t4', expected '{KEY}' as in 'one.json': "
        "adopt the results of each hardware on their own\n"
    )
    assert not Path("baselines").exists()


OTHER_LIMIT = "got GPUs with power_limit_w 600.0, expected power_limit_w 700.0"


def test_results_of_another_power_limit_do_not_belong_together(capsys: pytest.CaptureFixture[str]) -> None:
    assert adopt(written("one"), written("two", watts=600.0)) == 1
    assert capsys.readouterr().err == (
        f"error: results 'two.json': {OTHER_LIMIT} as in 'one.json': their metrics cannot be compared: "
        "adopt them on their own, into another folder (--baselines DIR)\n"
    )
    assert not Path("baselines").exists()


def test_results_that_tell_no_limit_keep_no_others_together(capsys: pytest.CaptureFixture[str]) -> None:
    assert adopt(written("none", watts=None), written("one"), written("two", watts=600.0)) == 1
    assert f"error: results 'two.json': {OTHER_LIMIT} as in 'one.json': " in capsys.readouterr().err
    adopt("one.json")
    assert adopt("none.json", "two.json", "--mode=append") == 1
    assert f"error: baselines 'baselines/{KEY}.json': {OTHER_LIMIT}, as when" in capsys.readouterr().err
    assert adopt("none.json", "two.json", "--baselines=of-600-w") == 0
    assert stored(Path("of-600-w")).match["power_limit_w"] == 600.0


@pytest.mark.parametrize("mode", ["moved", "new", "all", "append"])
def test_results_do_not_go_into_baselines_of_another_power_limit(capsys: pytest.CaptureFixture[str], mode: str) -> None:
    adopt(written("one"))
    assert adopt(written("two", 110.0, watts=600.0), f"--mode={mode}") == 1
    assert capsys.readouterr().err == (
        f"error: baselines 'baselines/{KEY}.json': {OTHER_LIMIT}, as when its metrics were measured: the two cannot be "
        "compared: measure with its power limit (nvidia-smi -pl 700), or keep baselines of these GPUs in a folder of "
        "their own (--baselines DIR)\n"
    )
    assert medians() == [100.0] * 5
    assert adopt("two.json", "--baselines=of-600-w") == 0


def _candidate(**changes: object) -> Callable[[Any], None]:
    return lambda data: data["candidate"].update(changes)


def _key_is_a_path(data: Any) -> None:
    data["hardware_key"] = data["candidate"]["hardware_key"] = "../x"


AGAIN = "check the path, or write the file again with pytest --gpuperf-json=FILE"


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda data: data.update(results=2), "results schema 2 is newer than this version reads (1): upgrade pytest-"),
        (_candidate(schema=9), "schema 9 is newer than this version reads (2): upgrade pytest-gpuperf"),
        (lambda data: data.pop("candidate"), f"a key 'candidate': {AGAIN}"),
        (lambda data: data.update(more=1), "file: got 'more', expected no keys but results, hardware_key, "),
        (lambda data: data.update(verdicts=[1]), f"file.verdicts[0]: got 1, expected an object: {AGAIN}"),
        (_key_is_a_path, "hardware_key: got '../x', expected letters, digits, '+', '.', '_' and '-' alone: "),
        (
            lambda data: data.update(hardware_key="1x-nvidia-t4"),
            f"file.hardware_key: got '{KEY}', expected '1x-nvidia-t4': {AGAIN}",
        ),
        (_candidate(tests={}), "holds no metrics of perf tests: adopt what a run with --gpus N and without --smoke ha"),
        (_candidate(launches={}), "expected ['one-0', 'one-1', "),
    ],
)
def test_a_file_that_says_something_else_is_refused(
    capsys: pytest.CaptureFixture[str], change: Callable[[Any], object], problem: str
) -> None:
    data = json.loads(Path(written("one")).read_text())
    change(data)
    Path("one.json").write_text(json.dumps(data))
    assert adopt("one.json") == 1
    message = capsys.readouterr().err
    assert message.startswith("error: results 'one.json': ")
    assert problem in message
    assert not Path("baselines").exists()


def test_what_a_reviewer_writes_does_not_come_with_results(capsys: pytest.CaptureFixture[str]) -> None:
    entry = {"status": "regressed", "reason": "x", "until": "2999-12-31"}
    data = json.loads(Path(written("one")).read_text())
    data["candidate"]["tests"][TEST]["expected"] = {"bw": entry}
    Path("one.json").write_text(json.dumps(data))
    assert adopt("one.json") == 1
    assert capsys.readouterr().err == (
        f"error: results 'one.json': file.candidate.tests['{TEST}']: got 'expected', expected what was measured alone: "
        "delete it: a reviewer writes it, into the baselines themselves\n"
    )
    assert not Path("baselines").exists()


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, f"there is no such file: {AGAIN}"),
        (b"", f"got an empty file, expected JSON: {AGAIN}"),
        (b"<html>", "got no valid JSON"),
        (b"[]", "file: got [], expected an object: "),
        (b"[" * 1_000_000, "got values nested too deeply"),
    ],
)
def test_a_broken_file_is_refused(capsys: pytest.CaptureFixture[str], content: bytes | None, problem: str) -> None:
    if content is not None:
        Path("one.json").write_bytes(content)
    assert adopt("one.json") == 1
    message = capsys.readouterr().err
    assert message.startswith("error: results 'one.json': ")
    assert problem in message


def test_a_baselines_file_is_no_file_of_results(capsys: pytest.CaptureFixture[str]) -> None:
    adopt(written("one"))
    capsys.readouterr()
    assert adopt(f"baselines/{KEY}.json") == 1
    assert "expected a key 'results'" in capsys.readouterr().err


def test_broken_baselines_are_left_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    Path("baselines").mkdir()
    Path("baselines", f"{KEY}.json").write_text("broken")
    assert adopt(written("one")) == 1
    assert capsys.readouterr().err.startswith(f"error: baselines 'baselines/{KEY}.json': got no valid JSON")
    assert Path("baselines", f"{KEY}.json").read_text() == "broken"


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ((), "the following arguments are required: accept | adopt"),
        (("adopt", "--reason=x"), "the following arguments are required: FILE"),
        (("adopt", "one.json"), "the following arguments are required: --reason"),
        (("adopt", "one.json", "--reason= "), "--reason is empty: say why these results become baselines"),
        (("adopt", "one.json", "--reason=x", "--mode=some"), "invalid choice: 'some' (choose from "),
        (
            ("adopt", "one.json", "--reason=x", "--minimum-slowdown=nan"),
            "--minimum-slowdown must be a positive number, got nan",
        ),
        (
            ("adopt", "one.json", "--reason=x", "--minimum-slowdown=0"),
            "--minimum-slowdown must be a positive number, got 0.0",
        ),
    ],
)
def test_a_command_that_cannot_be_meant(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], problem: str
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert problem in capsys.readouterr().err


def test_a_file_of_results_is_read_as_it_was_written() -> None:
    written("one")
    found = results_file.load(Path("one.json"))
    again = replace(found)
    results_file.write(Path("again.json"), again)
    assert results_file.load(Path("again.json")) == found
    assert found.verdicts[0].outcome is Outcome.MISSING
