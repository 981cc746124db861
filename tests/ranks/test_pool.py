"""Live ranks: what they are sent and give back, and that nothing of a run is left for the next."""

import gc
import os
import platform
import sys
import time
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist

from pytest_gpuperf import Context, RankDied
from pytest_gpuperf.ranks import payload
from pytest_gpuperf.ranks.closing import await_ended
from pytest_gpuperf.ranks.excerpt import HEAD, TAIL
from pytest_gpuperf.ranks.forkserver_client import ForkserverClient
from pytest_gpuperf.ranks.local_ranks import LocalNode, LocalRanks
from pytest_gpuperf.ranks.pool import Pool
from pytest_gpuperf.ranks.spec import PoolSpec, make_pool_environ, make_rank_environ
from tests.ranks.conftest import Call, pids
from tests.ranks.processes import open_files, survivors

MUCH = 5_000_000  # bytes


def test_results_come_in_the_order_of_the_ranks(call: Call) -> None:
    def program(ctx: Context) -> tuple[int, int]:
        if ctx.rank == 0:
            dist.recv(torch.zeros(1), src=1)  # rank 1 answers first
        else:
            dist.send(torch.zeros(1), dst=0)
        return ctx.rank, ctx.world_size

    assert call(program) == [(0, 2), (1, 2)]


def test_the_context_says_where_a_program_runs(call: Call) -> None:
    def program(ctx: Context) -> dict[str, Any]:
        equal = torch.equal(torch.rand(3, generator=ctx.generator()), torch.rand(3, generator=ctx.generator()))
        assert ctx.group is dist.group.WORLD
        return {
            "local_rank": ctx.local_rank,
            "backend": ctx.backend,
            "device": str(ctx.device),
            "seed": ctx.seed,
            "same draws": equal,
            "default draws": torch.rand(2).tolist(),
            "node": (ctx.node, ctx.num_nodes, ctx.node_name),
        }

    first, second = call(program)
    assert first == {**first, "local_rank": 0, "backend": "gloo", "device": "cpu", "seed": 100, "same draws": True}
    assert second == {**second, "local_rank": 1, "seed": 101, "node": (0, 1, platform.node())}
    assert first["default draws"] != second["default draws"]
    assert [first, second] == call(program)


def test_ranks_run_on_the_cores_that_they_are_given(torch_client: ForkserverClient) -> None:
    allowed = os.sched_getaffinity(0)
    own = frozenset({min(allowed)}), frozenset({max(allowed)})

    def program(ctx: Context) -> tuple[set[int], set[int]]:
        torch.ones(1_000_000).add_(1)  # the threads that torch starts
        threads = [int(task.name) for task in Path("/proc/self/task").iterdir()]
        return os.sched_getaffinity(0), set[int]().union(*map(os.sched_getaffinity, threads))

    pool = Pool(LocalNode(torch_client), PoolSpec(2, cores=own), {"PATH": "/bin"})
    try:
        pool.open_group("first", 60)
        task = payload.dumps((program, (), {}), [sys.modules[__name__]])
        found = [payload.loads(data) for data in pool.run(task, program="program", seed=1, timeout=60)]
    finally:
        pool.close()
    assert found == [(set(cores), set(cores)) for cores in own]


def test_a_program_that_destroyed_its_group_is_told_so_and_the_next_one_has_a_new_one(pool: Pool, call: Call) -> None:
    def program(ctx: Context) -> None:
        dist.destroy_process_group()
        assert ctx.group

    with pytest.raises(RuntimeError, match=r"(?m)^rank [01] has no process group: the program destroyed it, or has"):
        call(program)
    pool.open_group("second", 60)
    assert call(lambda ctx: ctx.group.size()) == [2, 2]


def test_the_environment_of_the_pool_reaches_its_ranks(call: Call) -> None:
    names = ("OF_THE_POOL", "GLOO_SOCKET_IFNAME", "CUDA_VISIBLE_DEVICES", "HOME")
    assert call(lambda ctx: [os.environ.get(name) for name in names]) == [["yes", "lo", "", None]] * 2


def test_a_pool_shows_its_ranks_its_own_gpus_alone() -> None:
    spec = PoolSpec(2, ("GPU-c", "GPU-a"))
    assert make_pool_environ(spec, {"CUDA_VISIBLE_DEVICES": "0,1,2", "X": "y"}) == {
        "CUDA_VISIBLE_DEVICES": "GPU-c,GPU-a",
        "GLOO_SOCKET_IFNAME": "lo",
        "NCCL_COMM_SPLIT_SHARE_RESOURCES": "1",
        "NCCL_SOCKET_IFNAME": "lo",
        "TORCH_FR_BUFFER_SIZE": "2000",
        "X": "y",
    }


def test_a_test_may_show_each_rank_its_own_gpu_alone() -> None:
    spec = PoolSpec(2, ("GPU-c", "GPU-a"), environ=(("CUDA_VISIBLE_DEVICES", "{gpu}"), ("WHO", "{rank} on {gpu}")))
    of_each = [make_rank_environ(rank, spec, make_pool_environ(spec, {})) for rank in (0, 1)]
    assert [environ["CUDA_VISIBLE_DEVICES"] for environ in of_each] == ["GPU-c", "GPU-a"]
    assert [environ["WHO"] for environ in of_each] == ["0 on GPU-c", "1 on GPU-a"]
    assert make_rank_environ(1, PoolSpec(2, environ=(("WHO", "{gpu}"),)), {})["WHO"] == ""
    apart = PoolSpec(12, environ=(("POD", "pod-{rank==1}{rank==11} of {rank}"),))
    pods = [make_rank_environ(rank, apart, {})["POD"] for rank in (0, 1, 11)]
    assert pods == ["pod-00 of 0", "pod-10 of 1", "pod-01 of 11"]


def test_groups_share_channels_only_where_nothing_is_timed_and_the_user_lets_them() -> None:
    share = "NCCL_COMM_SPLIT_SHARE_RESOURCES"
    assert share not in make_pool_environ(PoolSpec(2, ("GPU-a", "GPU-b"), timed=True), {})
    assert share not in make_pool_environ(PoolSpec(2), {})
    assert make_pool_environ(PoolSpec(2, ("GPU-a", "GPU-b")), {share: "0"})[share] == "0"


def test_what_the_user_chose_stays() -> None:
    chosen = {"GLOO_SOCKET_IFNAME": "eth0", "NCCL_SOCKET_IFNAME": "=bond0", "TORCH_FR_BUFFER_SIZE": "20000"}
    assert make_pool_environ(PoolSpec(2), chosen) == {**chosen, "CUDA_VISIBLE_DEVICES": ""}


def test_a_pool_of_gpus_speaks_nccl_and_one_without_gloo() -> None:
    assert (PoolSpec(1, ("GPU-a",)).backend, PoolSpec(1).backend) == ("nccl", "gloo")


def test_ranks_share_the_cores(call: Call) -> None:
    assert call(lambda ctx: torch.get_num_threads()) == [max(1, len(os.sched_getaffinity(0)) // 2)] * 2


@pytest.fixture
def six_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine may have more of them, or fewer: a container or a job is given some."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(6)))


@pytest.mark.usefixtures("six_cores")
def test_ranks_share_those_cores_that_the_run_may_use(call: Call) -> None:
    assert call(lambda ctx: torch.get_num_threads()) == [3, 3]


def shown(pool: Pool) -> list[tuple[int, str, str]]:
    return [(rank, stream, str(text)) for rank, stream, text in pool.output()]


def test_what_ranks_print_is_kept_by_rank_and_told_once(pool: Pool, call: Call) -> None:
    def program(ctx: Context) -> None:
        print("out", ctx.rank)
        if ctx.rank == 1:
            os.write(2, b"from C\n")

    call(program)
    assert shown(pool) == [(0, "stdout", "out 0\n"), (1, "stdout", "out 1\n"), (1, "stderr", "from C\n")]
    assert pool.output() == []


def test_a_group_of_the_same_name_is_kept(pool: Pool, call: Call) -> None:
    def name(ctx: Context) -> str:
        return ctx.group.group_name

    before = call(name)
    pool.open_group("first", 60)
    assert call(name) == before
    pool.open_group("second", 60)
    assert call(lambda ctx: dist.get_world_size()) == [2, 2]


def test_a_large_result_arrives(call: Call) -> None:
    first, second = call(lambda ctx: torch.full((3_000_000,), float(ctx.rank)))
    assert (float(first.sum()), float(second.sum())) == (0.0, 3_000_000.0)


def test_a_short_timeout_is_the_programs_and_not_the_groups(pool: Pool, call: Call) -> None:
    pool.open_group("second", 0.001)
    assert call(lambda ctx: ctx.group.size()) == [2, 2]


def test_no_file_is_left_open_by_runs_groups_and_pools(torch_client: ForkserverClient) -> None:
    def program(ctx: Context) -> int:
        dist.barrier()
        gc.collect()
        await_ended()
        return open_files()

    def exercise(pool: Pool, groups: range, runs: int) -> list[int]:
        task = payload.dumps((program, (), {}), [sys.modules[__name__]])
        counts = []
        for number in groups:
            pool.open_group(f"group {number}", 60)
            for _ in range(runs):
                counts = [payload.loads(data) for data in pool.run(task, program="p", seed=1, timeout=60)]
        return counts

    before = open_files()
    for attempt in range(2):
        pool = Pool(LocalNode(torch_client), PoolSpec(2), {})
        few = exercise(pool, range(2), 3)
        in_use = open_files()
        assert exercise(pool, range(2, 7), 6) == few
        assert open_files() == in_use
        pool.close()
        assert open_files() == before, attempt


def test_what_was_printed_before_a_failure_is_told_once(pool: Pool, call: Call) -> None:
    def program(ctx: Context) -> None:
        print("printed by", ctx.rank, flush=True)
        if ctx.rank == 1:
            os._exit(1)

    with pytest.raises(RankDied):
        call(program)
    assert shown(pool) == [(0, "stdout", "printed by 0\n"), (1, "stdout", "printed by 1\n")]


def test_a_listener_hears_what_ranks_print_while_they_run(torch_client: ForkserverClient, tmp_path: Path) -> None:
    def program(ctx: Context, answer: Path) -> None:
        print("asks", ctx.rank, flush=True)
        while not answer.exists():
            time.sleep(0.01)

    def listener(*heard: Any) -> None:
        told.append(heard)
        if len(told) == 2:
            (tmp_path / "answer").touch()

    told: list[Any] = []
    pool = Pool(LocalNode(torch_client), PoolSpec(2), {}, listener=listener)
    try:
        pool.open_group("first", 60)
        task = payload.dumps((program, (tmp_path / "answer",), {}), [sys.modules[__name__]])
        pool.run(task, program="p", seed=0, timeout=60)
        assert sorted(told) == [(rank, f"rank {rank} of 2", "stdout", f"asks {rank}\n") for rank in range(2)]
        assert pool.output() == []
    finally:
        pool.close()


def test_a_listener_hears_all_that_a_rank_printed_and_what_it_printed_after_its_run(
    torch_client: ForkserverClient,
) -> None:
    def program(ctx: Context) -> None:
        os.write(1, b"x" * MUCH)

    heard: list[str] = []
    pool = Pool(LocalNode(torch_client), PoolSpec(1), {}, listener=lambda rank, title, stream, text: heard.append(text))
    try:
        pool.open_group("first", 60)
        pool.run(payload.dumps((program, (), {}), [sys.modules[__name__]]), program="p", seed=0, timeout=60)
        (node,) = pool._nodes
        (process,) = cast(LocalRanks, node)._processes.values()
        process.stdout.write(b" late")  # as a thread of the rank's would
        process.stdout.flush()
        assert pool.output() == []
        process.stdout.write(b" last")
        process.stdout.flush()
        pool.kill()
        assert pool.output() == []
        assert "".join(heard) == "x" * MUCH + " late last"
    finally:
        pool.close()


def test_a_report_gets_the_beginning_and_the_end_of_what_is_long(pool: Pool, call: Call) -> None:
    call(lambda ctx: print("first", "x" * MUCH, "last") if ctx.rank == 0 else None)
    (text,) = (text for _, _, text in shown(pool))
    assert len(text) < 70_000
    assert text.startswith("first x")
    assert text.endswith("x last\n")
    assert f"\n[gpuperf: {MUCH + len('first  last') + 1 - HEAD - TAIL} bytes are left out here; " in text


def test_the_tests_own_variables_reach_its_ranks_and_pytests_do_not() -> None:
    spec = PoolSpec(1, environ=(("X", "of the test"), ("NEW", "1")))
    environ = make_pool_environ(spec, {"X": "of the run", "PYTEST_CURRENT_TEST": "test_x.py::test_it (call)"})
    assert environ == {
        "CUDA_VISIBLE_DEVICES": "",
        "GLOO_SOCKET_IFNAME": "lo",
        "NCCL_SOCKET_IFNAME": "lo",
        "TORCH_FR_BUFFER_SIZE": "2000",
        "X": "of the test",
        "NEW": "1",
    }


def test_a_pool_that_is_left_as_it_was_found_is_kept(pool: Pool, call: Call) -> None:
    def program(ctx: Context) -> None:
        dist.new_group([0])
        ctx.mesh((2,))

    before = pids(call)
    call(program)
    assert pool.settle() == []
    pool.open_group("second", 60)
    assert pids(call) == before


def test_what_was_left_behind_is_told_by_rank_and_ends_the_pool(pool: Pool, call: Call) -> None:
    def program(ctx: Context) -> None:
        torch.set_default_dtype(torch.float64)
        if ctx.rank == 1:
            os.environ["LEFT"] = "x"

    processes = pids(call)
    call(program)
    assert sorted(pool.settle()) == [
        "rank 1: environment: LEFT unset -> 'x'",
        "ranks 0, 1: default dtype: torch.float32 -> torch.float64",
    ]
    assert not pool.alive
    assert survivors(processes) == []
    assert pool.settle() == []


def test_a_mesh_is_over_all_ranks(call: Call) -> None:
    def program(ctx: Context) -> tuple[Any, ...]:
        mesh = ctx.mesh((1, 2), ("dp", "tp"))
        return mesh.mesh.tolist(), mesh.mesh_dim_names, mesh["tp"].get_local_rank(), mesh.device_type

    assert call(program) == [([[0, 1]], ("dp", "tp"), rank, "cpu") for rank in (0, 1)]


def groups_of_a_mesh(ctx: Context, names: tuple[str, str], *, destroy: bool = False) -> list[str]:
    """Names of the mesh's groups, and how many groups there are at all."""
    mesh = ctx.mesh((1, 2), names)
    found = [group.group_name for group in mesh.get_all_groups()]
    if destroy:
        dist.destroy_process_group(mesh.get_group(names[0]))
    return [*found, str(len(dist.distributed_c10d._world.pg_map))]


def test_runs_of_a_test_share_a_mesh(pool: Pool, call: Call) -> None:
    first = call(groups_of_a_mesh, ("dp", "tp"))
    assert call(groups_of_a_mesh, ("dp", "tp")) == first
    assert call(groups_of_a_mesh, ("a", "b")) != first  # another one
    pool.settle()
    pool.open_group("second", 60)
    assert call(lambda ctx: len(ctx._meshes)) == [0, 0]  # else names that now belong to other groups would be found
    new = call(groups_of_a_mesh, ("dp", "tp"))
    assert call(all_reduced_over_mesh) == [2.0, 2.0]  # on groups that are open
    assert call(groups_of_a_mesh, ("dp", "tp")) == new


def all_reduced_over_mesh(ctx: Context) -> float:
    x = torch.ones(1)
    dist.all_reduce(x, group=ctx.mesh((1, 2), ("dp", "tp")).get_group("tp"))
    return x.item()


def test_a_mesh_whose_groups_were_destroyed_is_made_anew(call: Call) -> None:
    first = call(lambda ctx: groups_of_a_mesh(ctx, ("dp", "tp"), destroy=True))
    second = call(groups_of_a_mesh, ("dp", "tp"))
    assert second != first
    assert call(all_reduced_over_mesh) == [2.0, 2.0]


@pytest.mark.parametrize(
    ("shape", "names", "message"),
    [
        (
            (2, 2),
            None,
            "a mesh of 2 x 2 has 4 places for 2 ranks: the sizes must multiply to the world size",
        ),
        (
            (-1, -2),
            None,
            "a mesh of -1 x -2 has 2 places for 2 ranks: the sizes must multiply to the world size",
        ),
        (
            (),
            None,
            "a mesh of no dimensions has 1 places for 2 ranks: the sizes must multiply to the world size",
        ),
        ((1, 2), ("tp",), "a mesh of 2 dimensions needs as many names, got ('tp',)"),
    ],
)
def test_a_mesh_that_does_not_fit_is_refused(
    shape: tuple[int, ...], names: tuple[str, ...] | None, message: str
) -> None:
    ctx = Context(rank=0, world_size=2, backend="gloo", device=torch.device("cpu"), seed=0)
    with pytest.raises(ValueError) as caught:
        ctx.mesh(shape, names)
    assert str(caught.value) == message


def test_a_barrier_waits_for_all_and_the_store_is_the_tests_own(pool: Pool, call: Call) -> None:
    def program(ctx: Context) -> tuple[bool, bytes]:
        if ctx.rank == 1:
            ctx.store.set("key", "of rank 1")
            ctx.store.wait(["key"])  # set() returns before the store has it
        ctx.barrier()
        assert ctx.store.check(["key"])
        return True, ctx.store.get("key")

    assert call(program) == [(True, b"of rank 1")] * 2
    pool.open_group("second", 60)
    assert call(lambda ctx: ctx.store.check(["key"])) == [False, False]


def test_a_store_without_a_group_says_who_destroyed_it(call: Call) -> None:
    def program(ctx: Context) -> None:
        dist.destroy_process_group()
        assert ctx.store

    with pytest.raises(RuntimeError, match=r"(?m)^rank [01] has no process group: the program destroyed it, or has"):
        call(program)


def test_what_a_test_imported_on_its_ranks_is_loaded_for_those_that_come_later(
    torch_client: ForkserverClient, pool: Pool, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_client, "_preload_if_used", {"wave": "wave", "cgitb": "cgitb"})
    for name in ("wave", "cgitb"):
        monkeypatch.delitem(sys.modules, name, raising=False)  # this process has no say

    def program(ctx: Context) -> None:
        import wave  # noqa: F401

    call(program)
    assert pool.settle() == []
    later = Pool(LocalNode(torch_client), PoolSpec(1), {"PATH": "/bin"})
    try:
        later.open_group("first", 60)
        task = payload.dumps((lambda ctx: [name in sys.modules for name in ("wave", "cgitb")], (), {}), [])
        assert [payload.loads(data) for data in later.run(task, program="", seed=0, timeout=60)] == [[True, False]]
    finally:
        later.close()
