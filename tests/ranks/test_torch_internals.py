"""What is relied on of torch's private names: with another version of torch, these tests tell whether it holds."""

import inspect
import pickle
import subprocess
import sys
import threading
import time
import traceback

import pytest
import torch
import torch.distributed as dist

from pytest_gpuperf import Context, torch_internals
from tests.ranks.conftest import Call


def test_groups_are_listed_in_order_counted_and_known_as_open(call: Call) -> None:
    def program(ctx: Context) -> tuple[bool, bool, bool, int, int, bool]:
        made = torch_internals.count_groups()
        sub = dist.new_group([0, 1])
        assert sub is not None
        listed = torch_internals.open_groups() == [ctx.group, sub]
        was_open = torch_internals.is_open(sub)
        more = torch_internals.count_groups() - made
        ctx.barrier()  # or one rank would take the group down while another one still connects
        dist.destroy_process_group(sub)
        left = torch_internals.open_groups() == [ctx.group]
        return listed, was_open, left, more, len(torch_internals.open_groups()), torch_internals.is_open(sub)

    assert call(program) == [(True, True, True, 1, 1, False)] * 2
    assert not torch_internals.is_open(None)


def test_members_are_those_of_the_groups_that_the_rank_is_in(call: Call) -> None:
    def program(ctx: Context) -> list[tuple[int, ...]]:
        alone = [dist.new_group([rank]) for rank in range(ctx.world_size)]
        members = list(torch_internals.group_members().values())
        dist.barrier()
        del alone
        return members

    assert call(program) == [[(0, 1), (0,)], [(0, 1), (1,)]]


def test_each_collective_has_a_number(call: Call) -> None:
    def program(ctx: Context) -> int:
        before = torch_internals.read_sequence_number(ctx.group)
        for _ in range(3):
            dist.all_reduce(torch.ones(1))
        return torch_internals.read_sequence_number(ctx.group) - before

    assert call(program) == [3, 3]


def test_coalescing_is_seen_while_it_lasts(call: Call) -> None:
    def program(ctx: Context) -> tuple[bool, bool, bool]:
        c10d = dist.distributed_c10d
        before = torch_internals.is_coalescing()
        # As batch_isend_irecv does on NCCL; gloo's backend ends no coalescing.
        c10d._world.pg_coalesce_state[ctx.group] = []
        during = torch_internals.is_coalescing()
        del c10d._world.pg_coalesce_state[ctx.group]
        return before, during, torch_internals.is_coalescing()

    assert call(program) == [(False, True, False)] * 2


def test_another_group_is_made_the_default_one(call: Call) -> None:
    def program(ctx: Context) -> tuple[bool, bool]:
        first, second = ctx.group, dist.new_group([0, 1])
        torch_internals.make_default(second)
        changed = dist.group.WORLD is second
        torch_internals.make_default(first)
        return changed, dist.group.WORLD is first

    assert call(program) == [(True, True)] * 2


def test_the_default_group_has_a_store_and_a_backend_with_options(call: Call) -> None:
    def program(ctx: Context) -> tuple[bytes, str]:
        store = torch_internals.find_default_store()
        if ctx.rank == 0:
            store.set("mine", "7")
        backend = torch_internals.find_default_backend(torch.device("cpu"))
        return store.get("mine"), type(backend).__name__

    assert call(program) == [(b"7", "ProcessGroupGloo")] * 2


def test_the_flight_recorder_has_what_was_issued(call: Call) -> None:
    def program(ctx: Context) -> list[object]:
        dump = torch_internals.find_flight_recorder("gloo")
        assert dump is not None
        dist.all_reduce(torch.ones(4))
        last = pickle.loads(dump())["entries"][-1]
        names = ("profiling_name", "input_sizes", "input_dtypes", "collective_seq_id", "is_p2p", "time_created_ns")
        return [last[name] for name in names[:3]] + [name in last for name in names[3:]]

    assert call(program) == [["gloo:all_reduce", [[4]], ["Float"], True, True, True]] * 2


def test_a_group_has_ranks_until_it_is_closed(call: Call) -> None:
    def program(ctx: Context) -> list[tuple[int, ...]]:
        group = dist.new_group([0, 1])
        assert group is not None
        dist.barrier(group=group)
        ranks = torch_internals.group_ranks(group)
        dist.destroy_process_group(group)
        return [ranks, torch_internals.group_ranks(group)]

    assert call(program) == [[(0, 1), ()]] * 2


def test_a_kernel_below_runs_without_the_gil(call: Call) -> None:
    def program(ctx: Context) -> bool:
        operation = torch.ops.c10d.monitored_barrier_.default
        below = torch_internals.find_kernel_below(operation)
        keys = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
        done = threading.Event()
        counted = []

        def count() -> None:
            while not done.wait(0.01):
                counted.append(time.monotonic())

        thread = threading.Thread(target=count)
        thread.start()
        if ctx.rank == 1:
            time.sleep(0.5)
        else:
            below(keys, torch.ones(1), ctx.group.boxed(), [], 60_000, True)
        if ctx.rank == 1:
            below(keys, torch.ones(1), ctx.group.boxed(), [], 60_000, True)
        done.set()
        thread.join()
        return len(counted) > 5

    assert call(program) == [True, True]


def test_the_signature_of_a_collective_names_what_we_look_for() -> None:
    for name, kind in torch_internals.COLLECTIVES.items():
        arguments = dict(torch_internals.read_signature(getattr(torch.ops.c10d, name).default))
        assert "ProcessGroup" in arguments["process_group"]
        assert ("reduce_op" in arguments) == ("reduce" in kind)
        assert ("root_rank" in arguments) == (kind in ("broadcast", "reduce", "gather", "scatter"))
    splits = dict(torch_internals.read_signature(torch.ops.c10d.alltoall_base_.default))
    assert {"input_split_sizes", "output_split_sizes"} < set(splits)


def test_the_reduction_is_read_from_the_caller() -> None:
    assert torch_internals.find_reduction(None) == ""
    assert torch_internals.find_reduction(sys._getframe()) == ""


def test_a_group_that_is_being_opened_is_seen_on_the_stack(call: Call) -> None:
    def program(ctx: Context) -> object:
        seen: list[object] = []

        def look() -> None:
            stack = [frame for frame, _ in traceback.walk_stack(sys._current_frames()[main])]
            seen.append(torch_internals.group_being_opened(stack))

        main = threading.get_ident()
        look_soon = threading.Timer(0.3, look)
        assert torch_internals.group_being_opened([sys._getframe()]) is None
        if ctx.rank == 1:
            time.sleep(1.0)
        else:
            look_soon.start()
        dist.new_group([1, 0])
        return seen

    assert call(program) == [[("1", (0, 1))], []]


def test_torch_has_a_recorder_for_nccl_if_it_has_nccl() -> None:
    assert (torch_internals.find_flight_recorder("nccl") is not None) == dist.is_nccl_available()


def test_the_recorder_names_operations_as_we_know_them(call: Call) -> None:
    def program(ctx: Context) -> list[str]:
        dump = torch_internals.find_flight_recorder("gloo")
        assert dump is not None
        before = len(pickle.loads(dump())["entries"])
        dist.all_reduce(torch.ones(2))
        dist.broadcast(torch.ones(2), 0)
        return [entry["profiling_name"].partition(":")[2] for entry in pickle.loads(dump())["entries"][before:]]

    assert call(program) == [["all_reduce", "broadcast"]] * 2
    assert {"all_reduce", "broadcast"} <= torch_internals.SAME_ON_ALL_RANKS


def test_dtensor_can_be_told_to_forget() -> None:
    from torch.distributed.tensor import debug

    assert any(hasattr(debug, name) for name in torch_internals._CLEAR)
    torch_internals.forget_sharding()  # what that is good for, test_groups.py shows


def test_global_hooks_are_found_by_their_kind() -> None:
    def counts() -> dict[str, int]:
        return {name: len(hooks) for name, hooks in torch_internals.global_module_hooks().items()}

    before = counts()
    handle = torch.nn.modules.module.register_module_forward_hook(lambda *_: None)
    try:
        assert sum(counts().values()) == sum(before.values()) + 1
    finally:
        handle.remove()
    assert counts() == before


def test_operators_and_overloads_have_names() -> None:
    add = torch.ops.aten.add
    assert torch_internals.split_operator(add) == ("aten", "add")
    assert torch_internals.split_overload(add.Tensor) == (add, "Tensor")
    assert torch_internals.split_overload(add) is None
    assert torch_internals.split_operator(add.Tensor) is None
    assert torch_internals.split_operator(torch.add) is None
    objects = (torch.ops, torch.ops.aten, add, add.Tensor, torch.classes)
    assert {type(obj).__module__ for obj in objects} <= set(torch_internals.OPERATOR_MODULES)


def test_a_functional_collective_is_awaited() -> None:
    from torch.distributed import _functional_collectives as functional

    pending = functional.AsyncCollectiveTensor(torch.ones(2))
    done = torch_internals.wait_for_tensor(pending)
    assert type(done) is torch.Tensor
    assert done.tolist() == [1.0, 1.0]
    plain = torch.ones(1)
    assert torch_internals.wait_for_tensor(plain) is plain


def test_leaves_are_those_of_nested_containers() -> None:
    assert list(torch_internals.list_leaves({"a": [1, (2, 3)], "b": 4})) == [1, 2, 3, 4]
    assert list(torch_internals.list_leaves(5)) == [5]


def test_a_stream_is_held_by_torchs_own_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    assert callable(torch.cuda._sleep)
    held: list[int] = []
    monkeypatch.setattr(torch.cuda, "_sleep", held.append)
    torch_internals.hold_stream(7)
    assert held == [7]


def test_cublas_workspaces_are_freed_where_torch_has_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    if torch.version.cuda is not None:
        torch_internals.free_cublas_workspaces()  # none is there
    freed: list[bool] = []
    monkeypatch.setattr(torch._C, "_cuda_clearCublasWorkspaces", lambda: freed.append(True), raising=False)
    torch_internals.free_cublas_workspaces()
    assert freed == [True]


@pytest.mark.parametrize("public", [True, False])
def test_cached_pinned_blocks_are_given_back(public: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    freed: list[str] = []
    monkeypatch.setattr(torch._C, "_host_emptyCache", lambda: freed.append("private"), raising=False)
    monkeypatch.delattr(torch.accelerator, "empty_host_cache", raising=False)
    if public:
        monkeypatch.setattr(torch.accelerator, "empty_host_cache", lambda: freed.append("public"), raising=False)
    torch_internals.free_pinned_memory()
    assert freed == ["public" if public else "private"]


@pytest.mark.parametrize("name", [torch_internals.DYNAMO, torch_internals.COMPILER])
def test_dynamo_and_the_compiler_are_modules(name: str) -> None:
    import importlib.util

    assert importlib.util.find_spec(name) is not None


def test_nothing_is_loaded_for_the_names() -> None:
    code = "import sys, pytest_gpuperf.torch_internals; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_init_process_group_connects_to_a_store_in_a_function_with_these_variables() -> None:
    function = sys.modules["torch.distributed.rendezvous"]._create_c10d_store
    assert inspect.getfile(function).endswith("torch/distributed/rendezvous.py")
    assert list(inspect.signature(function).parameters)[:2] == ["hostname", "port"]
