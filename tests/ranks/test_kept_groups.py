"""After which programs the next test has the same process group: on GPUs those that leave it as it was, on CPUs none.

``pytest tests/ranks/test_kept_groups.py --gpus 2`` runs it with NCCL.
"""

import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from pytest_gpuperf import Context
from pytest_gpuperf.ranks import payload
from pytest_gpuperf.ranks.forkserver_client import ForkserverClient
from pytest_gpuperf.ranks.local_ranks import LocalNode
from pytest_gpuperf.ranks.pool import Pool
from pytest_gpuperf.ranks.spec import PoolSpec

Call = Callable[..., list[Any]]


@pytest.fixture(scope="module")
def gpus(request: pytest.FixtureRequest) -> tuple[str, ...]:
    """Two GPUs; none without ``--gpus``."""
    return () if request.config.getoption("--gpuperf-gpus") == "0" else ("0", "1")


@pytest.fixture(scope="module")
def both(torch_client: ForkserverClient, gpus: tuple[str, ...]) -> Iterator[Pool]:
    """Two ranks for all tests of the module, as a session has them."""
    pool = Pool(LocalNode(torch_client), PoolSpec(2, gpus), dict(os.environ))
    yield pool
    pool.close()


def run(pool: Pool, function: Callable[[Context], Any]) -> list[Any]:
    task = payload.dumps((function, (), {}), [sys.modules[__name__]])
    return [payload.loads(data) for data in pool.run(task, program=function.__name__, seed=100, timeout=60)]


def nothing(ctx: Context) -> None:
    pass


def sums(ctx: Context) -> None:
    dist.all_reduce(torch.ones(1000, device=ctx.device))
    dist.barrier()


def objects(ctx: Context) -> None:
    dist.all_gather_object([None, None], ctx.rank)


def sends(ctx: Context) -> None:
    tensor = torch.ones(1, device=ctx.device)
    (dist.send if ctx.rank == 0 else dist.recv)(tensor, 1 - ctx.rank)


def batches_of_sends(ctx: Context) -> None:
    out, into = torch.ones(2, 10, device=ctx.device)
    for work in dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, out, 1 - ctx.rank), dist.P2POp(dist.irecv, into, 1 - ctx.rank)]
    ):
        work.wait()


def a_mesh_of_all(ctx: Context) -> None:
    init_device_mesh(ctx.device.type, (2,))


def data_parallel(ctx: Context) -> None:
    module = nn.parallel.DistributedDataParallel(nn.Linear(4, 4, device=ctx.device))
    module(torch.ones(4, 4, device=ctx.device)).sum().backward()


def fully_sharded(ctx: Context) -> None:
    module = nn.Linear(4, 4, device=ctx.device)
    fully_shard(module)
    module(torch.ones(4, 4, device=ctx.device)).sum().backward()


def a_subgroup(ctx: Context) -> None:
    dist.new_group([0, 1])


def a_subgroup_that_is_gone(ctx: Context) -> None:
    group = dist.new_group([0, 1])
    dist.barrier()  # a rank that closes its connections would break those that the other one still makes
    dist.destroy_process_group(group)


def a_mesh_of_two_dimensions(ctx: Context) -> None:
    init_device_mesh(ctx.device.type, (1, 2))


def symmetric_memory(ctx: Context) -> None:
    if ctx.device.type == "cuda":
        import torch.distributed._symmetric_memory as symm_mem

        tensor = symm_mem.empty(8, device=ctx.device)
        torch.cuda.synchronize()
        symm_mem.rendezvous(tensor, ctx.group)


def group_and_sum(ctx: Context) -> tuple[int, float]:
    total = torch.tensor(float(ctx.rank + 1), device=ctx.device)
    dist.all_reduce(total)
    return id(dist.group.WORLD), float(total)


@pytest.mark.parametrize(
    ("program", "kept"),
    [
        (nothing, True),
        (sums, True),
        (objects, True),
        (sends, True),
        (batches_of_sends, True),
        (a_mesh_of_all, True),
        (data_parallel, True),
        (fully_sharded, True),
        (a_subgroup, False),
        (a_subgroup_that_is_gone, False),
        (a_mesh_of_two_dimensions, False),
        (symmetric_memory, False),
    ],
)
def test_the_next_test_has_a_group_that_works(
    both: Pool, gpus: tuple[str, ...], program: Callable[[Context], None], kept: bool
) -> None:
    both.open_group(f"before {program.__name__}", 60)
    before = run(both, group_and_sum)
    run(both, program)
    assert not both.settle()
    assert both._kept is (kept and bool(gpus))
    both.open_group(f"after {program.__name__}", 60)
    after = run(both, group_and_sum)
    assert [total for _, total in after] == [3.0, 3.0]
    if kept and gpus:
        assert [group for group, _ in after] == [group for group, _ in before]
