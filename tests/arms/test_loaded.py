"""Which code a process reports."""

import _ctypes
import ctypes
import mmap
import shutil
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from types import ModuleType

import pytest

from pytest_gpuperf.features.racing.arms.loaded import list_loaded_code


def test_modules_of_the_folder_are_reported_by_their_real_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    (tmp_path / "folder").symlink_to(inside)
    files = {"gp_one": inside / "one.py", "gp_two": tmp_path / "folder/two.py", "gp_far": tmp_path / "far.py"}
    for name, file in files.items():
        module = ModuleType(name)
        module.__file__ = str(file)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setitem(sys.modules, "gp_odd", 3)
    assert list_loaded_code(None, str(inside)) == [f"{inside}/one.py", f"{inside}/two.py"]


def test_mapped_code_is_reported_and_mapped_data_is_not(tmp_path: Path) -> None:
    library = tmp_path / f"library{EXTENSION_SUFFIXES[0]}"
    shutil.copy(_ctypes.__file__, library)
    ctypes.PyDLL(str(library))
    (tmp_path / "data").write_bytes(b"data")
    with (tmp_path / "data").open("r+b") as file, mmap.mmap(file.fileno(), 0):
        assert list_loaded_code(None, str(tmp_path)) == [str(library)]
    library.unlink()
    assert list_loaded_code(None, str(tmp_path)) == [str(library)]
