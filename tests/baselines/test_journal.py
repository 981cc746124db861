"""What a recording leaves for another one to go on with."""

import json
import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_gpuperf.baselines import files
from pytest_gpuperf.baselines.schema import LaunchInfo
from pytest_gpuperf.features.recording.journal import Entry, Journal, JournalError, RecordingPlan, require_same_software
from pytest_gpuperf.figures.metric import Metric
from tests.baselines.examples import KEY, launch

PLAN = RecordingPlan(KEY, "abc", 5, {"test_a": "body-a", "test_b": "body-b"}, {"power_limit_w": 700.0})
ENTRY = Entry(1, "launch-1", launch(), "test_a", "body-a", {"time": Metric(1.5, "s", "lower", 1.4, 1.6, 9)})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "baselines" / ".key.journal"


def left(path: Path, *entries: Entry) -> Path:
    """What an interrupted recording leaves."""
    journal = Journal.begin(path, PLAN)
    for entry in entries:
        journal.note(entry)
    journal.close()
    return path


def resumed(path: Path, plan: RecordingPlan = PLAN) -> list[Entry]:
    """What another recording finds."""
    journal, entries = Journal.resume(path, plan)
    journal.close()
    return entries


def test_it_goes_on_with_what_was_noted(path: Path) -> None:
    journal, entries = Journal.resume(left(path, ENTRY), PLAN)
    assert entries == [ENTRY]
    journal.note(replace(ENTRY, test="test_b", body_hash="body-b"))
    journal.close()
    assert [entry.test for entry in resumed(path)] == ["test_a", "test_b"]


def test_one_from_before_plans_had_the_machines_facts_goes_on(path: Path) -> None:
    plan, *entries = left(path, ENTRY).read_bytes().splitlines(keepends=True)
    older = json.loads(plan)
    del older["plan"]["match"]
    path.write_bytes(json.dumps(older).encode() + b"\n" + b"".join(entries))
    assert resumed(path) == [ENTRY]


def test_a_line_that_a_kill_cut_is_measured_again(path: Path) -> None:
    left(path, ENTRY, replace(ENTRY, number=2))
    path.write_bytes(path.read_bytes()[:-20])
    journal, entries = Journal.resume(path, PLAN)
    assert [entry.number for entry in entries] == [1]
    journal.note(replace(ENTRY, number=3))
    journal.close()
    assert [entry.number for entry in resumed(path)] == [1, 3]


def test_a_new_recording_begins_anew(path: Path) -> None:
    left(path, ENTRY)
    left(path)
    assert resumed(path) == []


def test_what_a_recording_can_go_on_with_is_spared(path: Path) -> None:
    left(path, ENTRY, replace(ENTRY, number=2), replace(ENTRY, number=2, test="test_b", body_hash="body-b"))
    before = path.read_bytes()
    message = (
        f"journal {str(path)!r}: it keeps metrics of 2 of the 5 launches of this recording: go on with it by --resume, "
        "or drop it by --no-resume"
    )
    with pytest.raises(JournalError) as caught:
        Journal.spare(path, PLAN)
    assert str(caught.value) == message
    other = re.escape(
        "2 of the 5 launches of another recording: its recording was of commit 'abc', this one is of 'def': go"
    )
    with pytest.raises(JournalError, match=other):
        Journal.spare(path, replace(PLAN, commit="def"))
    assert path.read_bytes() == before
    assert len(resumed(path)) == 3  # nobody holds it


@pytest.mark.parametrize("raw", [None, b"", b"no journal\n"])
def test_what_nobody_can_go_on_with_is_not(path: Path, raw: bytes | None) -> None:
    left(path)
    if raw is not None:
        path.write_bytes(raw)
    Journal.spare(path, PLAN)
    path.unlink()
    Journal.spare(path, PLAN)


def test_what_is_written_leaves_nothing(path: Path) -> None:
    Journal.begin(path, PLAN).remove()
    with pytest.raises(JournalError) as caught:
        Journal.resume(path, PLAN)
    message = f"journal {str(path)!r}: there is none, so nothing was interrupted: drop --resume"
    assert str(caught.value) == message


def test_two_recordings_do_not_share_one(path: Path) -> None:
    held = Journal.begin(path, PLAN)
    message = "another run is recording this hardware: wait until it has ended"
    for second in (Journal.begin, Journal.resume):
        with pytest.raises(JournalError, match=message):
            second(path, PLAN)
    held.note(ENTRY)
    held.close()
    assert resumed(path) == [ENTRY]


@pytest.mark.parametrize(
    ("plan", "problem"),
    [
        (replace(PLAN, commit="def"), "its recording was of commit 'abc', this one is of 'def': check that commit out"),
        (replace(PLAN, launches=7), "its recording was of launches 5, this one is of 7: pass the same --launches, or"),
        (replace(PLAN, hardware_key="other"), f"was of hardware_key {KEY!r}, this one is of 'other': record anew"),
        (
            replace(PLAN, match={"power_limit_w": 600.0}),
            "got GPUs with power_limit_w 600.0, expected power_limit_w 700.0, with which its recording began: go on on "
            "the same GPUs, or record anew with --no-resume",
        ),
        (replace(PLAN, tests={"test_a": "body-a"}), "this recording is without test_b: select the same tests, or rec"),
        (replace(PLAN, tests={**PLAN.tests, "test_c": ""}), "this recording is with test_c: select the same tests"),
        (
            replace(PLAN, tests={**PLAN.tests, "test_a": "x"}),
            "this recording is with another body of test_a: select the same tests, or record anew with --no-resume",
        ),
        (
            replace(PLAN, tests={**PLAN.tests, **{f"test_{i}": "" for i in range(5)}}),
            "this recording is with test_0, test_1, test_2, 2 more: ",
        ),
    ],
)
def test_another_recording_does_not_go_on_with_it(path: Path, plan: RecordingPlan, problem: str) -> None:
    with pytest.raises(JournalError, match=re.escape(problem)):
        Journal.resume(left(path, ENTRY), plan)
    assert resumed(path) == [ENTRY]


def _second_line(change: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
    def spoil(raw: bytes) -> bytes:
        plan, entry, _ = raw.split(b"\n")
        return plan + b"\n" + change(entry) + b"\n"

    return spoil


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (lambda raw: b"", "it is empty, so nothing was measured: record anew with --no-resume"),
        (lambda raw: b"\xff\n" + raw, "line 1 is broken: 'utf-8' codec"),
        (lambda raw: b"[]\n", r"line 1 is broken: line: got \[\], expected an object"),
        (lambda raw: b'{"plan": {}}\n', r"line 1 is broken: line.plan: got \[\], expected a key 'hardware_key'"),
        (_second_line(lambda line: b"[" * 100_000 + b"]" * 100_000), "line 2 is broken: maximum recursion depth"),
        (_second_line(lambda line: line.replace(b"1.5", b"NaN")), "line 2 is broken: NaN is no JSON number"),
        (_second_line(lambda line: line.replace(b"1.5", b"-1.5")), "line 2 is broken: .*metric value is -1.5"),
        (_second_line(lambda line: line.replace(b"launch-1", b"a", 1)[:-1]), "line 2 is broken: "),
        (_second_line(lambda line: b'{"test": 1, "test": 2}'), "line 2 is broken: key 'test' stands twice"),
        (_second_line(lambda line: line.replace(b"body-a", b"body-z")), "line 2 is of 'test_a' in launch 1, which is"),
        (_second_line(lambda line: line.replace(b'"number": 1', b'"number": 6')), "in launch 6, which is not due"),
    ],
)
def test_a_spoiled_journal_is_refused(path: Path, spoil: Callable[[bytes], bytes], problem: str) -> None:
    left(path, ENTRY)
    path.write_bytes(spoil(path.read_bytes()))
    with pytest.raises(JournalError, match=problem):
        Journal.resume(path, PLAN)


def test_a_journal_that_cannot_be_read_is_said(path: Path) -> None:
    path.mkdir(parents=True)
    with pytest.raises(JournalError, match="cannot be read: got IsADirectoryError"):
        Journal.resume(path, PLAN)


@pytest.mark.parametrize(
    ("now", "problem"),
    [
        ({"nccl": "2.29", "torch": "2.13.0"}, "its launches ran with nccl '2.28.9', now it is '2.29': install that ve"),
        ({"torch": "2.13.0"}, "its launches ran with nccl '2.28.9', now it is None"),
        ({"nccl": "2.28.9", "torch": "2.13.0", "new": "1"}, "its launches ran with new None, now it is '1'"),
    ],
)
def test_launches_of_two_installations_are_not_mixed(path: Path, now: dict[str, str], problem: str) -> None:
    require_same_software(path, [ENTRY], {"nccl": "2.28.9", "torch": "2.13.0"})
    require_same_software(path, [], now)
    with pytest.raises(JournalError, match=re.escape(problem)):
        require_same_software(path, [ENTRY], now)


def test_every_line_is_on_the_disk_when_its_test_ends(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(len(path.read_bytes().splitlines())))
    journal = Journal.begin(path, PLAN)
    journal.note(ENTRY)
    assert synced == [1, 2]
    assert json.loads(path.read_text().splitlines()[1])["test"] == "test_a"
    journal.close()


def test_a_launch_keeps_what_it_ran_with(path: Path) -> None:
    info = LaunchInfo("now", "abc", "h9", {"nccl": "2"})
    assert resumed(left(path, replace(ENTRY, info=info)))[0].info == info


def test_what_another_recording_left_meanwhile_is_spared_under_the_lock(path: Path) -> None:
    Journal.spare(path, PLAN)
    before = left(path, ENTRY).read_bytes()
    with pytest.raises(JournalError, match="it keeps metrics of 1 of the 5 launches of this recording: go on with it"):
        Journal.begin(path, PLAN, spare=True)
    assert path.read_bytes() == before
    Journal.begin(path, PLAN, spare=False).close()
    assert resumed(path) == []


def test_the_file_that_an_ended_recording_removes_while_it_is_opened_is_made_again(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ending = Journal.begin(path, PLAN)
    opened = files.open_regular

    def ends_after(path: Path, flags: int) -> int:
        descriptor = opened(path, flags)
        ending.remove()
        monkeypatch.setattr(files, "open_regular", opened)
        return descriptor

    monkeypatch.setattr(files, "open_regular", ends_after)
    journal = Journal.begin(path, PLAN)
    journal.note(ENTRY)
    journal.close()
    assert resumed(path) == [ENTRY]
