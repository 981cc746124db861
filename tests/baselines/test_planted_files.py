"""What others may have put where files of baselines, results and journals are read and written."""

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_gpuperf.__main__ import main
from pytest_gpuperf.baselines import files, json_files
from pytest_gpuperf.baselines.json_files import BaselineWriteError, load, save
from pytest_gpuperf.baselines.schema import BaselineError
from pytest_gpuperf.features.recording.journal import Journal, JournalError
from tests.baselines.examples import KEY, TEST, baselines
from tests.baselines.test_adopt_command import written
from tests.baselines.test_journal import ENTRY, PLAN, left
from tests.whole_run import ROOT, environment

pytestmark = pytest.mark.usefixtures("alarm")

SECONDS = 20  # a hang, not a slow machine


@pytest.fixture
def alarm() -> Iterator[None]:
    """Ends a test that hangs, also in a system call."""

    def hung(number: int, frame: object) -> None:
        raise TimeoutError("it hangs")

    before = signal.signal(signal.SIGALRM, hung)
    signal.alarm(SECONDS)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "baselines").mkdir()
    return tmp_path / "baselines" / f"{KEY}.json"


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    """A file of somebody's that a link may lead to."""
    file = tmp_path / "precious"
    file.write_text("precious")
    return file


def _linked(place: Path, precious: Path) -> None:
    place.symlink_to(precious)


def _fifo(place: Path, precious: Path) -> None:
    os.mkfifo(place)


PLANTED = pytest.mark.parametrize("plant", [_linked, _fifo])


def _socket(place: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made, tempfile.TemporaryDirectory() as short:  # an address holds 107 bytes
        made.bind(f"{short}/socket")
        os.rename(f"{short}/socket", place)


FIFO = pytest.param(os.mkfifo, "a FIFO", id="fifo")
FOLDER = pytest.param(Path.mkdir, "IsADirectoryError", id="folder")
DEVICE = pytest.param(lambda path: path.symlink_to("/dev/zero"), "a device", id="device")
SOCKET = pytest.param(_socket, "a socket", id="socket")
to_read = pytest.mark.parametrize(("make", "what"), [FIFO, FOLDER, DEVICE])
to_write = pytest.mark.parametrize(("make", "what"), [FIFO, FOLDER, SOCKET])


@PLANTED
@pytest.mark.parametrize("write", [lambda path: save(path, baselines()), lambda path: json_files.replace(path, "text")])
def test_nobody_can_plant_a_temporary_file(
    path: Path, precious: Path, plant: Callable[[Path, Path], None], write: Callable[[Path], None]
) -> None:
    plant(path.with_name(f".{path.name}.tmp"), precious)
    write(path)
    assert stat.S_ISREG(path.lstat().st_mode)
    assert precious.read_text() == "precious"


def test_a_planted_lock_is_not_followed(path: Path, precious: Path) -> None:
    path.with_name(f".{path.name}.lock").symlink_to(precious)
    with pytest.raises(BaselineWriteError, match=r"cannot be written: got OSError\(40, 'Too many levels of symbolic"):
        save(path, baselines())
    assert precious.read_text() == "precious"
    assert not path.exists()


def test_a_fifo_is_a_lock_like_another(path: Path) -> None:
    os.mkfifo(path.with_name(f".{path.name}.lock"))
    save(path, baselines())
    assert load(path, KEY) == baselines()


@PLANTED
def test_a_planted_journal_is_not_followed(path: Path, precious: Path, plant: Callable[[Path, Path], None]) -> None:
    journal = path.with_name(f".{KEY}.journal")
    plant(journal, precious)
    before = journal.lstat()
    with pytest.raises(OSError, match=r"Too many levels of symbolic links|a FIFO, expected a regular file"):
        Journal.begin(journal, PLAN)
    with pytest.raises(JournalError, match=r"cannot be read: got .*(symbolic links|a FIFO, expected a regular file)"):
        Journal.resume(journal, PLAN)
    Journal.spare(journal, PLAN)
    assert precious.read_text() == "precious"
    assert journal.lstat().st_mode == before.st_mode


@to_read
def test_what_is_no_regular_file_holds_no_baselines(path: Path, make: Callable[[Path], object], what: str) -> None:
    make(path)
    with pytest.raises(BaselineError, match=rf"cannot be read: got .*{what}.*: make it a readable file, or move it"):
        load(path, KEY)
    with pytest.raises(BaselineError, match=what):
        save(path, baselines())


@to_write
def test_what_is_no_regular_file_is_not_replaced(path: Path, make: Callable[[Path], object], what: str) -> None:
    make(path)
    before = path.lstat()
    with pytest.raises(BaselineWriteError, match=what):
        json_files.replace(path, "text")
    assert path.lstat() == before


@to_read
def test_what_is_no_regular_file_holds_no_results(
    path: Path, capsys: pytest.CaptureFixture[str], make: Callable[[Path], object], what: str
) -> None:
    make(path)
    assert main(["adopt", str(path), "--reason=x"]) == 1
    assert what in capsys.readouterr().err


@to_write
def test_what_is_no_regular_file_is_no_journal(path: Path, make: Callable[[Path], object], what: str) -> None:
    journal = path.with_name(f".{KEY}.journal")
    make(journal)
    with pytest.raises(JournalError, match=what):
        Journal.resume(journal, PLAN)
    with pytest.raises(OSError, match="Is a directory" if make is Path.mkdir else what):
        Journal.begin(journal, PLAN)


# A process of little memory: what fills it raises there, and takes nothing from others.
READ = """
import resource, sys
from pathlib import Path
from pytest_gpuperf.baselines.json_files import load
resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
load(Path(sys.argv[1]), sys.argv[2])
"""


def test_a_file_beyond_the_limit_is_not_read(path: Path) -> None:
    with path.open("wb") as stream:
        stream.truncate(8 << 30)  # holes: no disk has to hold them
    done = subprocess.run(
        [sys.executable, "-c", READ, str(path), KEY], cwd=ROOT, env=environment(), capture_output=True, text=True
    )
    assert "holds 8589934592 bytes, expected at most 67108864 (64 MiB)" in done.stderr


def test_a_file_that_is_longer_than_it_says_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MOST_BYTES", 100)
    assert Path("/proc/self/maps").stat().st_size == 0
    with pytest.raises(BaselineError, match=r"holds \d+ bytes, expected at most 100 "):
        load(Path("/proc/self/maps"), KEY)


def test_a_file_keeps_its_mode(path: Path) -> None:
    save(path, baselines())
    for mode in (0o600, 0o664, 0o444):
        path.chmod(mode)
        save(path, baselines(float(mode)))
        assert stat.S_IMODE(path.stat().st_mode) == mode


def spoiled(**more: object) -> str:
    data: Any = baselines().to_json()
    data["tests"][TEST]["metrics"]["busbw"].update(more)
    return json.dumps(data)


@pytest.mark.parametrize("number", ["1e999", "-1e999", "1" + "0" * 400])
def test_a_number_that_nobody_can_write_again_is_refused_by_its_place(path: Path, number: str) -> None:
    path.write_text(spoiled(sigma_b="HERE").replace('"HERE"', number))
    place = rf"file\.tests\['{TEST[:10]}.*'\]\.metrics\.busbw\.sigma_b: got (inf|-inf|1000+), expected "
    with pytest.raises(BaselineError, match=place):
        load(path, KEY)


@pytest.mark.parametrize("number", ["1e999", "1" + "0" * 400])
def test_a_journal_holds_finite_numbers_only(path: Path, number: str) -> None:
    journal = left(path.with_name(".journal"), replace(ENTRY))
    journal.write_text(journal.read_text().replace('"gpus"', '"gpu_s"').replace('"number": 1', f'"number": {number}'))
    with pytest.raises(JournalError, match=r"line 2 is broken: line\.number: got (inf|1000+), expected "):
        Journal.resume(journal, PLAN)


LONG = "x" * 100_000


def _long_test(data: Any) -> None:
    data["tests"][LONG] = {"body_hash": 3}


def _long_key(data: Any) -> None:
    data[LONG] = 1


def _long_launch(data: Any) -> None:
    data["tests"][TEST]["metrics"]["busbw"]["launches"][0]["launch"] = LONG


def _many_launches(data: Any) -> None:
    data["launches"] = {f"launch-of-many-{index}": next(iter(data["launches"].values())) for index in range(10_000)}


def _long_hardware_key(data: Any) -> None:
    data["hardware_key"] = LONG


def _long_metric(data: Any) -> None:
    entry = data["tests"][TEST]
    entry["expected"] = {LONG: {"reason": "x", "until": "2999-12-31", "status": "regressed"}}
    entry["metrics"][LONG + "y"] = entry["metrics"]["busbw"]


def _long_figure(data: Any) -> None:
    figure = data["tests"][TEST]["metrics"]["busbw"]["launches"][0]
    figure.update(launch=LONG, median=-1.0)


@pytest.mark.parametrize(
    "change",
    [_long_test, _long_key, _long_launch, _many_launches, _long_hardware_key, _long_metric, _long_figure],
)
def test_what_a_message_names_is_cut(path: Path, change: Callable[[Any], None]) -> None:
    data = baselines().to_json()
    change(data)
    path.write_text(json.dumps(data))
    with pytest.raises(BaselineError) as caught:
        load(path, KEY)
    assert len(str(caught.value)) < 1500


def test_a_key_that_stands_twice_is_cut(path: Path) -> None:
    path.write_text(f'{{"{LONG}": 1, "{LONG}": 2}}')
    with pytest.raises(BaselineError, match="stands twice") as caught:
        load(path, KEY)
    assert len(str(caught.value)) < 1000


def test_what_a_journals_message_names_is_cut(path: Path) -> None:
    journal = left(path.with_name(".journal"), ENTRY)
    with pytest.raises(JournalError, match="this recording is with xxx") as caught:
        Journal.resume(journal, replace(PLAN, tests={**PLAN.tests, LONG: ""}))
    assert len(str(caught.value)) < 1000
    journal.write_text(journal.read_text().replace('"test_a"', f'"{LONG}"'))
    with pytest.raises(JournalError, match=r"is of 'xxx|without xxx") as caught:
        Journal.resume(journal, PLAN)
    assert len(str(caught.value)) < 1000


def test_what_adopting_says_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, body in (("one", LONG), ("two", "other")):
        written(name, body=body, test=LONG)
    assert main(["adopt", "one.json", "two.json", "--reason=x"]) == 1
    assert "do not belong together" in (out := capsys.readouterr().out)
    assert all(len(line) < 1500 for line in out.splitlines())
