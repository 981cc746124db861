"""What a launch ran with, as its ranks tell."""

from importlib.metadata import version
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pytest_gpuperf.timing import software as module
from pytest_gpuperf.timing.software import software
from tests.ranks.conftest import Call


def test_ranks_on_cpus_tell_of_python_and_torch(call: Call) -> None:
    for versions in call(software):
        assert sorted(versions) == ["python", "torch"]
        assert versions["torch"] == torch.__version__


def test_ranks_on_gpus_tell_of_libraries_too_where_they_are_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 28, 9))
    monkeypatch.setattr(module, "LIBRARIES", ("pluggy", "no-such-distribution"))
    context: Any = SimpleNamespace(device=torch.device("cuda"))
    versions = software(context)
    assert sorted(versions) == ["cuda", "nccl", "pluggy", "python", "torch"]
    assert (versions["nccl"], versions["pluggy"]) == ("2.28.9", version("pluggy"))
