"""What is relied on of multiprocessing's undocumented names."""

import multiprocessing
import os
import sys
from collections.abc import Callable
from multiprocessing import spawn
from pathlib import Path

import pytest

from pytest_gpuperf.ranks.multiprocessing_internals import add_to_path_of_children, as_child


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_processes_import_from_further_folders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, method: str) -> None:
    monkeypatch.setattr(spawn, "get_preparation_data", spawn.get_preparation_data)  # put back in the end
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", None)
    monkeypatch.delattr(sys.modules["__main__"], "__file__", raising=False)
    (tmp_path / "only_in_children.py").write_text("def double(x):\n    return 2 * x\n")
    folders: list[str] = []
    add_to_path_of_children(lambda: folders)
    folders.append(str(tmp_path))
    with multiprocessing.get_context(method).Pool(1) as pool:
        path: Callable[[], list[str]] = sys.path.copy
        assert pool.apply(eval, ("__import__('only_in_children').double(2)",)) == 4
        assert str(tmp_path) not in path()


def test_a_process_is_known_as_a_child_within_the_block_only() -> None:
    name, parent = multiprocessing.current_process().name, multiprocessing.parent_process()
    with as_child("process 7"):
        found = multiprocessing.parent_process()
        assert found is not None
        assert (found.name, found.pid, found.is_alive()) == ("MainProcess", os.getppid(), True)
        assert multiprocessing.current_process().name == "process 7"
        with multiprocessing.get_context("fork").Pool(1) as pool:
            assert pool.apply(os.getppid) == os.getpid()
    assert (multiprocessing.current_process().name, multiprocessing.parent_process()) == (name, parent)
