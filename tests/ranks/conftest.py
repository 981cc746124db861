"""What tests of this folder ask for: one forkserver for all, which imports torch once, and ranks of it."""

import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pytest_gpuperf.ranks import payload
from pytest_gpuperf.ranks.forkserver_client import PRELOAD as TORCH
from pytest_gpuperf.ranks.forkserver_client import ForkserverClient
from pytest_gpuperf.ranks.local_ranks import LocalNode
from pytest_gpuperf.ranks.pool import Pool
from pytest_gpuperf.ranks.spec import PoolSpec
from pytest_gpuperf.torch_internals import DYNAMO
from tests.ranks.forked_rank import PRELOAD
from tests.ranks.travelling import MODULE

Call = Callable[..., list[Any]]


def pids(call: Call) -> list[int]:
    """Process ids of the ranks."""
    return call(lambda ctx: os.getpid())


def notes(error: BaseException) -> list[str]:
    """What was noted on an error."""
    return getattr(error, "__notes__", [])


@pytest.fixture(scope="module", autouse=True)
def _forkservers_are_new(fresh_python: None) -> None:
    """What these tests look into is the forkserver itself, with what it has imported."""


@pytest.fixture(scope="module")
def client() -> Iterator[ForkserverClient]:
    """A client whose forkserver has no torch; the module's."""
    client = ForkserverClient(PRELOAD)
    yield client
    client.close()


@pytest.fixture
def own_client() -> Iterator[ForkserverClient]:
    """Yield a client that only this test uses."""
    client = ForkserverClient(PRELOAD)
    yield client
    client.close()


@pytest.fixture(scope="session")
def torch_client() -> Iterator[ForkserverClient]:
    """A client whose forkserver has torch, and what DDP, FSDP and DTensor import, which takes a rank a second."""
    client = ForkserverClient((*TORCH, DYNAMO, "torch.distributed.fsdp", "torch.distributed.tensor.debug"))
    yield client
    client.close()


@pytest.fixture
def pool(torch_client: ForkserverClient) -> Iterator[Pool]:
    """Two fresh ranks with a process group."""
    pool = Pool(LocalNode(torch_client), PoolSpec(2), {"PATH": "/bin", "OF_THE_POOL": "yes"})
    pool.open_group("first", 60)
    yield pool
    pool.close()


@pytest.fixture
def call(pool: Pool) -> Call:
    """Runs a function of the calling test module on the pool: ``call(function, *args, timeout=60)``."""

    def run(function: Callable[..., Any], *args: Any, timeout: float = 60.0) -> list[Any]:
        task = payload.dumps((function, args, {}), [sys.modules[function.__module__]])
        payloads = pool.run(task, program=function.__name__, seed=100, timeout=timeout)
        return [payload.loads(data) for data in payloads]

    return run


@pytest.fixture
def module(tmp_path: Path) -> Iterator[ModuleType]:
    """A module that only this process has."""
    path = tmp_path / "nowhere_else.py"
    path.write_text(MODULE)
    spec = importlib.util.spec_from_file_location("nowhere_else", path)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    sys.modules["nowhere_else"] = loaded
    spec.loader.exec_module(loaded)
    yield loaded
    del sys.modules["nowhere_else"]
