"""How the suites' programs get symmetric memory, on a machine that has none."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
import torch.distributed._symmetric_memory as symm_mem

from pytest_gpuperf import Context
from suites.shared.peer_memory import symmetric_tensor


def test_no_rank_can_signal_before_the_signals_are_wiped(monkeypatch: pytest.MonkeyPatch) -> None:
    happened: list[str] = []
    tensor = torch.zeros(3)

    def noted(name: str, result: Any = None) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            happened.append(name)
            return result

        return call

    monkeypatch.setattr(symm_mem, "empty", noted("empty", tensor))
    monkeypatch.setattr(torch.cuda, "synchronize", noted("synchronize"))
    monkeypatch.setattr(symm_mem, "rendezvous", noted("rendezvous", "handle"))
    ctx = cast(Context, SimpleNamespace(device=torch.device("cpu"), group="group", num_nodes=1))
    assert symmetric_tensor(ctx, (3,), torch.float32) == (tensor, "handle")
    assert happened == ["empty", "synchronize", "rendezvous"]


def test_gpus_of_several_nodes_have_no_memory_in_common() -> None:
    ctx = cast(Context, SimpleNamespace(device=torch.device("cpu"), num_nodes=2))
    with pytest.raises(pytest.skip.Exception, match=r"^the ranks are on 2 nodes, whose GPUs do not reach each other's"):
        symmetric_tensor(ctx, (3,), torch.float32)
