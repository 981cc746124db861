"""Calls in source files are found by what their names stand for, and those at sites are not listed."""

import sys
import types
from pathlib import Path

import torch

from pytest_gpuperf.features.mutating.faults import Site
from pytest_gpuperf.features.mutating.source_calls import is_made, iterate_calls, list_user_files

SOURCE = """
import torch
import torch.distributed
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import distributed
from torch.distributed import all_gather as gather_all

class Own:
    def all_reduce(self): ...

def program(x, parts):
    dist.all_reduce(x)
    gather_all(
        parts,
        x,
    )
    torch.distributed.broadcast(x, 0)
    distributed.send(x, 1)
    functional.all_reduce(x, "sum", "0")
    dist.batch_isend_irecv([dist.P2POp(dist.isend, x, 1)])
    Own().all_reduce()
    dist.barrier()
    dist.get_rank()
"""


def test_calls_are_found_by_what_their_names_stand_for(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(SOURCE)
    found = sorted(iterate_calls(tmp_path / "a.py"))
    assert [(call.line, call.end, call.operation) for call in found] == [
        (13, 13, "all_reduce"),
        (14, 17, "all_gather"),
        (18, 18, "broadcast"),
        (19, 19, "send"),
        (20, 20, "all_reduce"),
        (21, 21, "batch_isend_irecv"),
    ]


def test_a_call_over_several_lines_is_reached_by_any_of_them(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text(SOURCE)
    sites = [Site(str(path), line, "", "", 0) for line in (13, 15, 18, 19, 20)]
    assert [call.operation for call in iterate_calls(path) if not is_made(call, sites)] == ["batch_isend_irecv"]
    elsewhere = [Site("b.py", site.line, "", "", 0) for site in sites]
    assert not any(is_made(call, elsewhere) for call in iterate_calls(path))


def test_what_cannot_be_read_as_python_has_no_calls(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("import torch.distributed as dist\ndist.all_reduce(\n")
    assert list(iterate_calls(tmp_path / "a.py")) == []
    assert list(iterate_calls(tmp_path / "missing.py")) == []


def test_files_of_the_user_are_those_below_the_root_that_are_not_installed(tmp_path: Path) -> None:
    own = types.ModuleType("own")
    own.__file__ = str(tmp_path / "own.py")
    elsewhere = types.ModuleType("elsewhere")
    elsewhere.__file__ = "/elsewhere/own.py"
    assert list_user_files([own, elsewhere, types.ModuleType("bare")], tmp_path) == [tmp_path / "own.py"]
    assert list_user_files([torch, sys.modules["pytest_gpuperf"]], Path("/")) == []
