"""``python -m pytest_gpuperf rename``: tests that have another name now keep their entries."""

from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest

from pytest_gpuperf.__main__ import main
from pytest_gpuperf.baselines.json_files import load, save
from pytest_gpuperf.baselines.merge import Stamp
from pytest_gpuperf.baselines.rename import RenameError, rename
from pytest_gpuperf.baselines.reviewed import KnownRegression
from pytest_gpuperf.baselines.schema import Baselines, Update
from pytest_gpuperf.baselines.storage import make_storage
from tests.baselines.examples import KEY, baselines

OTHER_KEY = "2x-nvidia-h200-nv18"
STAMP = Stamp("2026-11-22T10:00:00Z", "abc124", "Ada", "renamed from x")
TWO, FOUR = "s/test_it.py::test_a[2ranks-x]", "s/test_it.py::test_a[4ranks-x]"
METHOD, LONGER, PLAIN = "s/test_it.py::TestIt::test_m", "s/test_it.py::test_ab[2ranks-x]", "s/test_it.python"


def stored(*tests: str, key: str = KEY) -> Baselines:
    """A file whose entries differ by their known regressions."""
    known = baselines(100.0, 101.0)
    (entry,) = known.tests.values()
    entries = {test: replace(entry, expected={"busbw": KnownRegression(test, date(2027, 1, 1))}) for test in tests}
    return replace(known, hardware_key=key, tests=entries)


def kept(folder: Path, *files: Baselines) -> Path:
    for one in files:
        save(folder / f"{one.hardware_key}.json", one)
    return folder


def names(folder: Path, key: str = KEY) -> list[str]:
    return sorted(read(folder, key).tests)


def read(folder: Path, key: str = KEY) -> Baselines:
    found = load(folder / f"{key}.json", key)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("old", "new", "left"),
    [
        (TWO, "s/test_it.py::test_b[2ranks-x]", {TWO: "s/test_it.py::test_b[2ranks-x]"}),
        (
            "s/test_it.py::test_a",
            "s/test_it.py::test_b",
            {TWO: "s/test_it.py::test_b[2ranks-x]", FOUR: "s/test_it.py::test_b[4ranks-x]"},
        ),
        ("s/test_it.py::TestIt", "s/test_it.py::TestThat", {METHOD: "s/test_it.py::TestThat::test_m"}),
        (
            "s/test_it.py",
            "z.py",
            {name: name.replace("s/test_it.py", "z.py") for name in (TWO, FOUR, METHOD, LONGER)},
        ),
        (PLAIN, "s/x.py", {PLAIN: "s/x.py"}),
    ],
    ids=["test", "function", "class", "file", "whole"],
)
def test_a_name_and_all_below_it_get_the_new_one(tmp_path: Path, old: str, new: str, left: dict[str, str]) -> None:
    before = stored(TWO, FOUR, METHOD, LONGER, PLAIN)
    kept(tmp_path, before)
    assert rename(make_storage(tmp_path), old, new, STAMP) == {str(tmp_path / f"{KEY}.json"): left}
    after = read(tmp_path)
    assert after.tests == {left.get(test, test): entry for test, entry in before.tests.items()}
    assert (after.launches, after.match) == (before.launches, before.match)
    update = Update("2026-11-22T10:00:00Z", "abc124", "Ada", "renamed from x", tuple(sorted(left.values())), 2)
    assert after.updates == (*before.updates, update)


def test_all_files_of_the_folder_are_changed_that_have_it(tmp_path: Path) -> None:
    kept(tmp_path, stored(TWO), stored(TWO, LONGER, key=OTHER_KEY), stored(LONGER, key="1x-nvidia-t4"))
    (tmp_path / f".{KEY}.journal").write_text("of a recording")
    text = (tmp_path / "1x-nvidia-t4.json").read_text()
    rename(make_storage(tmp_path), TWO, FOUR, STAMP)
    assert names(tmp_path) == [FOUR]
    assert names(tmp_path, OTHER_KEY) == [FOUR, LONGER]
    assert (tmp_path / "1x-nvidia-t4.json").read_text() == text


def test_a_name_that_is_taken_is_refused_and_no_file_is_changed(tmp_path: Path) -> None:
    kept(tmp_path, stored(TWO, FOUR, key=OTHER_KEY), stored(TWO))
    texts = {path: path.read_text() for path in tmp_path.glob("*.json")}
    with pytest.raises(RenameError) as caught:
        rename(make_storage(tmp_path), TWO, FOUR, STAMP)
    assert str(caught.value) == (
        f"'{TWO}' cannot become '{FOUR}', which has an entry already in {tmp_path / OTHER_KEY}.json: delete the one "
        'that is not needed, under "tests" there'
    )
    assert {path: path.read_text() for path in tmp_path.glob("*.json")} == texts


@pytest.mark.parametrize("old", ["s/test_it.py::test_", "s/test_it", "test_a", "s/test_it.py::test_a[2ranks"])
def test_a_name_that_no_entry_has_is_refused(tmp_path: Path, old: str) -> None:
    kept(tmp_path, stored(TWO))
    with pytest.raises(RenameError) as caught:
        rename(make_storage(tmp_path), old, "x", STAMP)
    assert str(caught.value) == (
        f"no baselines have an entry of '{old}', or of a test below it: name it as it stands under \"tests\", from the "
        "rootdir"
    )


def test_a_folder_without_baselines_has_no_entry(tmp_path: Path) -> None:
    with pytest.raises(RenameError, match=r"^no baselines have an entry of 'x', "):
        rename(make_storage(tmp_path / "none"), "x", "y", STAMP)


def test_it_is_a_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    kept(Path("baselines"), stored(TWO))
    assert main(["rename", "s/test_it.py", "s/test_that.py"]) == 0
    assert capsys.readouterr().out == (
        f"{TWO} -> s/test_that.py::test_a[2ranks-x]\n1 test renamed in baselines/{KEY}.json\n"
    )
    assert read(Path("baselines")).updates[-1].reason == "renamed from s/test_it.py"
    assert main(["rename", "s/test_it.py", "s/test_that.py"]) == 1
    assert capsys.readouterr().err.startswith("error: no baselines have an entry of 's/test_it.py', ")


def test_it_takes_another_folder_and_says_that_a_functions_name_is_of_its_body(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept(tmp_path, stored(TWO, FOUR))
    assert main(["rename", "s/test_it.py::test_a", "s/test_it.py::test_b", f"--baselines={tmp_path}"]) == 0
    assert capsys.readouterr().out.splitlines()[-2:] == [
        f"2 tests renamed in {tmp_path / KEY}.json",
        "test_b was test_a, and a function's name is part of its body: the entries are stale until they are recorded "
        "again; losses are held against them all the same",
    ]
