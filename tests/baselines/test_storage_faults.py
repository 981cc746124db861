"""Files of baselines under writers that meet, die or run out of room, and under contents that nobody wrote."""

import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytest_gpuperf.baselines.json_files import load, save, update
from pytest_gpuperf.baselines.json_text import format_json
from pytest_gpuperf.baselines.schema import BaselineError, Baselines, TestBaseline
from tests.baselines.examples import KEY, TEST, baselines, metric_baseline
from tests.whole_run import ROOT, environment

# A writer in a process of its own: adds entries one by one, and says so after each.
WRITER = """
import sys
from pathlib import Path
from pytest_gpuperf.baselines.schema import TestBaseline
from pytest_gpuperf.baselines.json_files import update
from tests.baselines.examples import KEY, baselines, metric_baseline, update_of

path, name, count = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
for index in range(count):
    test = f"{name}-{index}"
    entry = TestBaseline("body", {"busbw": metric_baseline(1.0)})
    update(path, KEY, lambda stored: (stored or baselines()).replace_tests({test: entry}, {}, update_of(test)))
    print(index, flush=True)
"""


# Root may write anywhere: it becomes nobody once everything is imported, which nobody might not be able to read.
UNPRIVILEGED = """
import os, sys
from pathlib import Path
from pytest_gpuperf.baselines.json_files import load, save
from tests.baselines.examples import KEY, baselines

changed = baselines(1.0)
if os.geteuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
print(load(Path(sys.argv[1]), KEY).hardware_key, flush=True)
save(Path(sys.argv[1]), changed)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "baselines" / f"{KEY}.json"


def writer(path: Path, name: str, count: int, **more: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path), name, str(count)],
        cwd=ROOT,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **more,
    )


def test_two_processes_that_write_at_once_lose_nothing(path: Path) -> None:
    running = [writer(path, name, 10) for name in ("one", "two")]
    for process in running:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
    stored = load(path, KEY)
    assert stored is not None
    assert set(stored.tests) == {TEST, *(f"{name}-{index}" for name in ("one", "two") for index in range(10))}
    assert len(stored.updates) == 21


def test_a_writer_that_is_killed_leaves_a_whole_file_and_no_lock(path: Path) -> None:
    for attempt in range(5):
        process = writer(path, f"killed-{attempt}", 10_000)
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(0.003 * attempt)  # somewhere in one of its writes
        os.kill(process.pid, signal.SIGKILL)
        process.communicate(timeout=60)
        stored = load(path, KEY)
        assert stored is not None
        assert f"killed-{attempt}-0" in stored.tests
    save(path, baselines(1.0))
    assert load(path, KEY) == baselines(1.0)
    assert not list(path.parent.glob(".*.tmp"))


def test_a_disk_that_is_full_keeps_the_old_file(path: Path) -> None:
    save(path, baselines())
    before = path.read_bytes()
    # The kernel refuses to write past the limit, as it does where a disk ends.
    process = writer(
        path, "full", 1, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) - 10,) * 2)
    )
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert (
        f"BaselineWriteError: baselines {str(path)!r}: cannot be written: got OSError(27, 'File too large')" in errors
    )
    assert path.read_bytes() == before
    assert not list(path.parent.glob(".*.tmp"))


@pytest.fixture
def open_to_all() -> Iterator[Path]:
    """A folder that other users reach; pytest's own are closed to them."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def test_a_folder_that_is_read_only_is_said(open_to_all: Path) -> None:
    path = open_to_all / "baselines" / f"{KEY}.json"
    save(path, baselines())
    before = path.read_bytes()
    for lock in path.parent.glob(".*.lock"):
        lock.unlink()
    path.parent.chmod(0o555)
    try:
        done = subprocess.run(
            [sys.executable, "-c", UNPRIVILEGED, str(path)],
            cwd=ROOT,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    finally:
        path.parent.chmod(0o755)
    assert f"BaselineWriteError: baselines {str(path)!r}: cannot be written: got PermissionError" in done.stderr
    assert done.stdout == f"{KEY}\n"
    assert path.read_bytes() == before


def changed(change: Callable[[Any], object]) -> bytes:
    data: Any = baselines().to_json()
    change(data)
    return json.dumps(data).encode()


def _launches(data: Any) -> Any:
    return data["tests"][TEST]["metrics"]["busbw"]["launches"]


def _figure(data: Any) -> Any:
    return _launches(data)[0]


HOSTILE = [
    pytest.param(b"[" * 10_000_000, "got values nested too deeply", id="10-mb-of-nesting"),
    pytest.param(b'{"a":' * 2_000_000, "got values nested too deeply", id="10-mb-of-objects"),
    pytest.param(
        b'{"schema": ' + b"[" * 900 + b"]" * 900 + b"}",
        "nested too deeply|schema: got \\[\\[",
        id="nested-not-too-deeply",
    ),
    pytest.param(changed(lambda data: _figure(data).update(median=float("nan"))), "NaN is no JSON number", id="nan"),
    pytest.param(changed(lambda data: _figure(data).update(median=-1.0)), "is -1.0, expected a finite", id="negative"),
    pytest.param(changed(lambda data: _figure(data).update(median="fast")), "got 'fast', expected a finite", id="type"),
    pytest.param(changed(lambda data: _figure(data).update(median=True)), "got True, expected a finite", id="bool"),
    pytest.param(
        changed(lambda data: [figure.update(median=1.7e308) for figure in _launches(data)]),
        "launches have the centre inf, expected a finite number",
        id="overflow",
    ),
    pytest.param(b'{"schema": 1, "schema": 1}', "key 'schema' stands twice", id="duplicate"),
    pytest.param(
        b"{" + b", ".join(b'"%d": 0' % index for index in range(100_000)) + b', "99999": 0}',
        "key '99999' stands twice",
        id="the-last-of-many-is-a-duplicate",
    ),
    pytest.param(changed(lambda data: data.update(schema=3)), "schema 3 is newer", id="newer"),
    pytest.param(changed(lambda data: data.update(schema=0)), "schema: got 0, expected an integer", id="older"),
    pytest.param(changed(lambda data: data.update(schema=1.0)), "schema: got 1.0, expected an integer", id="float"),
    pytest.param(
        changed(lambda data: data.update(hardware_key="../x")),
        "hardware_key: got '../x', expected letters, digits, ",
        id="key-is-a-path",
    ),
    pytest.param(
        changed(lambda data: data["tests"][TEST]["metrics"]["busbw"].update(anchor={"center": 0})),
        r"anchor: .*expected|anchor: got",
        id="anchor",
    ),
    pytest.param(
        changed(lambda data: data["updates"][0].update(changed={"t": {"m": [1]}})),
        r"changed\.t\.m: got \[1\], expected a list of two finite numbers",
        id="changed",
    ),
]


@pytest.mark.parametrize(("content", "message"), HOSTILE)
def test_hostile_contents_are_named_and_left(path: Path, content: bytes, message: str) -> None:
    path.parent.mkdir()
    path.write_bytes(content)
    start = time.monotonic()
    with pytest.raises(BaselineError, match=message) as caught:
        load(path, KEY)
    assert time.monotonic() - start < 10  # a hang, not a slow machine
    assert str(path) in str(caught.value)
    assert len(str(caught.value)) < 1000
    with pytest.raises(BaselineError):
        update(path, KEY, lambda stored: baselines())
    assert path.read_bytes() == content


@pytest.mark.parametrize("key", ["../x", "a/b", "", ".hidden", "/etc/passwd", "a\0b", "x\n"])
def test_a_hardware_key_is_no_path(key: str) -> None:
    with pytest.raises(ValueError, match=r"hardware_key is .*, expected letters, digits"):
        Baselines(key, {})


JUNK = [b"", b"{", b"}", b"[", b"]", b",", b'"', b"-", b"0", b"9", b"e308", b"NaN", b"null", b"true", b"\xff", b"\0"]


@given(st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_a_file_that_changed_anywhere_is_read_as_what_it_says_or_refused(path: Path, data: st.DataObject) -> None:
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    save(path, baselines())
    whole = path.read_bytes()
    start = data.draw(st.integers(0, len(whole)))
    end = data.draw(st.integers(start, min(len(whole), start + 40)))
    path.write_bytes(whole[:start] + data.draw(st.sampled_from(JUNK) | st.binary(max_size=8)) + whole[end:])
    refusal = ""
    try:
        read = load(path, KEY)
    except BaselineError as error:
        refusal = str(error)
    if refusal:
        assert refusal.startswith(f"baselines {str(path)!r}: ")
    else:
        assert read is not None
        assert Baselines.from_json(json.loads(format_json(read.to_json())), path, KEY) == read


def test_entries_that_did_not_change_stay_byte_for_byte(path: Path) -> None:
    save(path, baselines(356.123e9, 357.456e9, 359.777e9))
    other = "suites/other.py::test_other"
    raw = json.loads(path.read_text())
    metric = raw["tests"][TEST]["metrics"]["busbw"]
    metric["sigma_b"], metric["launches"][0]["q1"] = 0.123456789, 352560000000
    path.write_text(format_json(raw))
    before = path.read_text()
    update(path, KEY, lambda stored: _with(stored, other))
    after = json.loads(path.read_text())
    assert format_json(after["tests"][TEST]) == format_json(raw["tests"][TEST])
    assert set(after["tests"]) == {TEST, other}
    assert before != path.read_text()


@pytest.mark.parametrize("change", [lambda stored: stored, lambda stored: None], ids=["the-same", "nothing"])
def test_an_update_that_changes_nothing_writes_nothing(
    path: Path, change: Callable[[Baselines | None], Baselines | None]
) -> None:
    path.parent.mkdir()
    written = json.dumps(baselines().to_json())  # on one line
    path.write_text(written)
    update(path, KEY, change)
    assert path.read_text() == written


def _with(stored: Baselines | None, test: str) -> Baselines:
    assert stored is not None
    entry = baselines(test=test).tests[test]
    return stored.replace_tests({test: entry}, baselines().launches, baselines().updates[0])


@pytest.mark.parametrize("file", sorted((ROOT / "baselines").glob("*.json")), ids=lambda file: file.stem)
def test_recorded_baselines_are_read_and_their_entries_survive_an_update(file: Path, path: Path) -> None:
    path = path.with_name(file.name)
    path.parent.mkdir()
    path.write_bytes(file.read_bytes())
    stored = load(path, file.stem)
    assert stored is not None
    assert stored.tests
    one = next(iter(stored.tests))
    smaller = {test: entry for test, entry in stored.tests.items() if test != one}

    def change(found: Baselines | None) -> Baselines:
        assert found is not None
        new = metric_baseline(1.0, 2.0)
        entry = replace(found.tests[one], metrics={"busbw": new})
        return found.replace_tests({one: entry}, baselines().launches, baselines().updates[0])

    update(path, file.stem, change)
    before, after = (json.loads(place.read_text())["tests"] for place in (file, path))
    for test in smaller:
        assert format_json(before[test]) == format_json(after[test])


@pytest.mark.parametrize("file", sorted((ROOT / "baselines").glob("*.json")), ids=lambda file: file.stem)
def test_recorded_baselines_are_saved_again_byte_for_byte(file: Path, path: Path) -> None:
    path = path.with_name(file.name)
    path.parent.mkdir()
    path.write_bytes(file.read_bytes())
    stored = load(path, file.stem)
    assert stored is not None
    other = TestBaseline("body", {})
    save(path, replace(stored, tests={**stored.tests, "other": other}))
    assert path.read_bytes() != file.read_bytes()
    save(path, stored)
    assert path.read_bytes() == file.read_bytes()


def test_a_file_of_the_first_schema_is_read(path: Path) -> None:
    data: Any = {**baselines().to_json(), "schema": 1}
    path.parent.mkdir()
    path.write_text(json.dumps(data))
    assert load(path, KEY) == baselines()
