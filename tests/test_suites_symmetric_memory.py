"""How the suites' programs get symmetric memory, on a machine that has none."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem

from pytest_gpuperf import Context
from suites.shared.peer_memory import prepare_workspace, symmetric_tensor


def noted(happened: list[str], name: str, result: Any = None) -> Any:
    """A function that notes its name."""

    def call(*args: Any, **kwargs: Any) -> Any:
        happened.append(name)
        return result

    return call


def test_no_rank_can_signal_before_the_signals_are_wiped(monkeypatch: pytest.MonkeyPatch) -> None:
    happened: list[str] = []
    tensor = torch.zeros(3)
    monkeypatch.setattr(symm_mem, "empty", noted(happened, "empty", tensor))
    monkeypatch.setattr(torch.cuda, "synchronize", noted(happened, "synchronize"))
    monkeypatch.setattr(symm_mem, "rendezvous", noted(happened, "rendezvous", "handle"))
    ctx = cast(Context, SimpleNamespace(device=torch.device("cpu"), group="group", num_nodes=1))
    assert symmetric_tensor(ctx, (3,), torch.float32) == (tensor, "handle")
    assert happened == ["empty", "synchronize", "rendezvous"]


def test_no_rank_can_use_the_workspace_before_all_have_wiped_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    happened: list[str] = []
    monkeypatch.setattr(symm_mem, "get_symm_mem_workspace", noted(happened, "workspace"))
    monkeypatch.setattr(torch.cuda, "synchronize", noted(happened, "synchronize"))
    monkeypatch.setattr(dist, "barrier", noted(happened, "barrier"))
    group = SimpleNamespace(group_name="0")
    prepare_workspace(cast(Context, SimpleNamespace(device=torch.device("cpu"), group=group, num_nodes=1)), 16)
    assert happened == ["workspace", "synchronize", "barrier"]


def test_gpus_of_several_nodes_have_no_memory_in_common() -> None:
    ctx = cast(Context, SimpleNamespace(device=torch.device("cpu"), num_nodes=2))
    with pytest.raises(pytest.skip.Exception, match=r"^the ranks are on 2 nodes, whose GPUs do not reach each other's"):
        symmetric_tensor(ctx, (3,), torch.float32)
