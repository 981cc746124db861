"""Each fault alters what a collective came to, on real ranks, and leaves nothing behind."""

import inspect
import io
import itertools
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.checkpoint as checkpoint
from torch.utils._python_dispatch import TorchDispatchMode

from pytest_gpuperf import CollectiveMismatch, Context, Ranks
from pytest_gpuperf.features.mutating import c10d_internals, interception
from pytest_gpuperf.features.mutating.faults import Fault, Kind, list_kinds
from pytest_gpuperf.features.mutating.on_rank import Observed, observe

Program = Callable[[Context], list[float]]
TRIALS = itertools.count()


def all_reduce(ctx: Context) -> list[float]:
    x = torch.tensor([1.0, 3.001]) * (ctx.rank + 1)
    dist.all_reduce(x)
    return x.tolist()


def maximum(ctx: Context) -> list[float]:
    x = torch.tensor([1.0 - ctx.rank])
    dist.all_reduce(x, op=dist.ReduceOp.MAX)
    return x.tolist()


def twice(ctx: Context) -> list[float]:
    found = []
    for step in (1.0, 2.0):
        x = torch.tensor([step])
        dist.all_reduce(x, async_op=True).wait()
        found += x.tolist()
    return found


def of_two_shapes(ctx: Context) -> list[float]:
    found = []
    for step in (1.0, 2.0):
        for x in (torch.tensor([step]), torch.tensor([step, 10 * step])):
            dist.all_reduce(x)
            found += x.tolist()
    return found


def all_gather(ctx: Context) -> list[float]:
    parts = [torch.empty(1) for _ in range(2)]
    dist.all_gather(parts, torch.tensor([ctx.rank + 1.0]))
    return torch.cat(parts).tolist()


def gather_into(ctx: Context) -> list[float]:
    whole = torch.empty(2)
    dist.all_gather_into_tensor(whole, torch.tensor([ctx.rank + 1.0]))
    return whole.tolist()


def reduce_scatter(ctx: Context) -> list[float]:
    mine = torch.empty(1)
    dist.reduce_scatter_tensor(mine, torch.tensor([1.0, 2.0]) + 10 * ctx.rank)
    return mine.tolist()


def scatter_lists(ctx: Context) -> list[float]:
    mine = torch.empty(1)
    dist.reduce_scatter(mine, [torch.tensor([1.0 + 10 * ctx.rank]), torch.tensor([2.0 + 10 * ctx.rank])])
    return mine.tolist()


def exchange(ctx: Context) -> list[float]:
    got = torch.empty(2)
    dist.all_to_all_single(got, torch.tensor([1.0, 2.0]) + 10 * ctx.rank)
    return got.tolist()


def broadcast(ctx: Context) -> list[float]:
    x = torch.tensor([ctx.rank + 1.0])
    dist.broadcast(x, 0)
    return x.tolist()


def send(ctx: Context) -> list[float]:
    x = torch.tensor([ctx.rank + 1.0])
    if ctx.rank == 0:
        dist.send(x, 1)
        return []
    dist.recv(x, 0)
    return x.tolist()


def sends_of_two_shapes(ctx: Context) -> list[float]:
    found = []
    for step in (1.0, 2.0):
        for x in (torch.tensor([step]), torch.tensor([step, 10 * step])):
            if ctx.rank == 0:
                dist.send(x, 1)
            else:
                dist.recv(x.zero_(), 0)
                found += x.tolist()
    return found


def steps(ctx: Context) -> list[float]:
    found = []
    for step in (1.0, 2.0, 3.0):
        x = torch.tensor([step * (1 + ctx.rank)])
        dist.all_reduce(x)
        found.append(x.item())
    return found


def gathered_objects(ctx: Context) -> list[float]:
    got: list[Any] = [None, None]
    dist.all_gather_object(got, {"rank": ctx.rank})
    return [float(one["rank"]) for one in got]


def gathered_at_one(ctx: Context) -> list[float]:
    got: list[Any] | None = [None, None] if ctx.rank == 0 else None
    dist.gather_object(float(ctx.rank), got)
    return got or []


def copied_objects(ctx: Context) -> list[float]:
    found = []
    for step in (0, 1):
        got = [float(10 * step + ctx.rank)]
        dist.broadcast_object_list(got, 1)
        found += got
    return found


def dealt_objects(ctx: Context) -> list[float]:
    got = [-1.0]
    dist.scatter_object_list(got, [5.0, 6.0] if ctx.rank == 0 else None, 0)
    return got


def hooked(ctx: Context) -> list[float]:
    x = torch.ones(1, requires_grad=True)
    x.register_hook(lambda gradient: gradient * 5)
    (x * 3).sum().backward()
    assert x.grad is not None
    return x.grad.tolist()


def hooked_after(ctx: Context) -> list[float]:
    x = torch.ones(1, requires_grad=True)
    seen: list[float] = []
    x.register_post_accumulate_grad_hook(lambda one: seen.append(one.item()))
    (x * 3).sum().backward()
    return seen


def stepped(ctx: Context) -> list[float]:
    x = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([x], lr=1.0, momentum=0.5)
    for _ in range(2):
        optimizer.zero_grad()
        x.sum().backward()
        optimizer.step()
    return [x.item(), float(len(optimizer.state[x]))]


def loaded(ctx: Context) -> list[float]:
    net = torch.nn.Linear(2, 1)
    net.weight.data.fill_(1)
    net.load_state_dict({"weight": torch.full((1, 2), 7.0), "bias": torch.full((1,), 8.0)})
    return [*net.weight.data[0].tolist(), net.bias.item()]


def loaded_by_optimizer(ctx: Context) -> list[float]:
    x = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([x], lr=1.0, momentum=0.5)
    saved = {**optimizer.state_dict(), "state": {0: {"momentum_buffer": torch.full((1,), 4.0)}}}
    optimizer.load_state_dict(saved)
    held: torch.Tensor = optimizer.state[x]["momentum_buffer"]
    return held.tolist()


def saved(ctx: Context) -> list[float]:
    found: list[float] = []
    for step in (1.0, 2.0):
        file = io.BytesIO()
        torch.save({"weights": [torch.full((2,), step)], "generator": torch.get_rng_state()}, file)
        file.seek(0)
        found += torch.load(file)["weights"][0].tolist()
    return found


def only_saved(ctx: Context) -> list[float]:
    torch.save(torch.ones(2), io.BytesIO())
    return [1.0]


def checkpointed(ctx: Context) -> list[float]:
    state = {"weights": torch.ones(2)}
    with tempfile.TemporaryDirectory() as folder:
        checkpoint.save({"weights": torch.full((2,), 5.0)}, checkpoint_id=folder, no_dist=True)
        checkpoint.load(state, checkpoint_id=folder, no_dist=True)
    return state["weights"].tolist()


def functional_sum(ctx: Context) -> list[float]:
    assert dist.group.WORLD is not None
    summed: torch.Tensor = functional.all_reduce(torch.tensor([ctx.rank + 1.0]), "sum", dist.group.WORLD)
    return summed.tolist()


def functional_scatter(ctx: Context) -> list[float]:
    assert dist.group.WORLD is not None
    mine: torch.Tensor = functional.reduce_scatter_tensor(torch.tensor([1.0, 2.0]), "sum", 0, dist.group.WORLD)
    return mine.tolist()


def ring(ctx: Context) -> list[float]:
    mine, got = torch.tensor([ctx.rank + 1.0]), torch.full((1,), float(time.monotonic_ns() % 1000))
    other = 1 - ctx.rank
    works = dist.batch_isend_irecv([dist.P2POp(dist.isend, mine, other), dist.P2POp(dist.irecv, got, other)])
    for work in works:
        work.wait()
    return got.tolist()


def summed_over_rows(ctx: Context) -> list[float]:
    mesh = ctx.mesh((2, 2), ("rows", "columns"))
    x = torch.tensor([10.0**ctx.rank])
    dist.all_reduce(x, group=mesh["rows"].get_group())
    return x.tolist()


def mean_over_all(ctx: Context) -> list[float]:
    x = torch.tensor([10.0**ctx.rank, 2.0])
    dist.all_reduce(x)
    x /= 4
    dist.all_reduce(x, op=dist.ReduceOp.MAX)
    return x.tolist()


def gathered_over_rows(ctx: Context) -> list[float]:
    mesh = ctx.mesh((2, 2), ("rows", "columns"))
    parts = [torch.empty(1), torch.empty(1)]
    dist.all_gather(parts, torch.tensor([float(ctx.rank)]), group=mesh["rows"].get_group())
    return torch.cat(parts).tolist()


def scattered_over_rows(ctx: Context) -> list[float]:
    mesh = ctx.mesh((2, 2), ("rows", "columns"))
    mine = torch.empty(1)
    given = torch.tensor([10.0**ctx.rank, 2 * 10.0**ctx.rank])
    dist.reduce_scatter_tensor(mine, given, group=mesh["rows"].get_group())
    return mine.tolist()


def reduced_by_some(ctx: Context) -> list[float]:
    mesh = ctx.mesh((2, 2), ("rows", "columns"))
    x = torch.tensor([10.0**ctx.rank])
    if ctx.rank in (0, 2):
        dist.all_reduce(x, group=mesh["rows"].get_group())
    return x.tolist()


def summed_large(ctx: Context) -> list[float]:
    mesh = ctx.mesh((2, 2), ("rows", "columns"))
    x = torch.full((2**20 + 1,), 10.0**ctx.rank)
    dist.all_reduce(x, group=mesh["rows"].get_group())
    return x[:1].tolist()


def summed_in_symmetric_memory(ctx: Context) -> list[float]:
    import torch.distributed._symmetric_memory  # as a program with symmetric memory does

    def kernel(tensor: torch.Tensor, reduce_op: str, group_name: Any) -> torch.Tensor:
        summed: torch.Tensor = functional.all_reduce(tensor, reduce_op, group_name)
        return summed.clone()

    assert dist.group.WORLD is not None
    on_cpus = torch.library.Library("symm_mem", "IMPL")
    on_cpus.impl("one_shot_all_reduce", kernel, "CPU")  # torch has it on GPUs only
    found = []
    for step in (1.0, 2.0):
        x = torch.tensor([step, 3.001]) * (ctx.rank + 1)
        found += torch.ops.symm_mem.one_shot_all_reduce(x, "sum", dist.group.WORLD.group_name).tolist()
        found += x.tolist()
    on_cpus._destroy()
    return found


def drawn_alike(ctx: Context) -> list[float]:
    torch.manual_seed(3)
    return torch.rand(1).tolist()


def drawn_by_rank(ctx: Context) -> list[float]:
    torch.random.manual_seed(seed=3 + ctx.rank)
    return torch.rand(1).tolist()


def with_fault(ranks: Ranks, program: Program, kind: Kind) -> list[Observed]:
    """What the ranks come to if the program's collective has a fault."""
    sites = {
        site: calls
        for one in ranks.run(observe, None, "", program, (), {})
        for site, calls in one.observation.sites.items()
    }
    (site,) = [site for site, calls in sites.items() if kind in list_kinds(calls)]
    assert site.file == __file__
    return ranks.run(observe, Fault(site, kind), f"{next(TRIALS)}", program, (), {})


@pytest.mark.parametrize(
    ("program", "kind", "expected"),
    [
        (all_reduce, Kind.SKIPPED, [[1.0, 3.001], [2.0, 6.002]]),
        (all_reduce, Kind.OVER, [[1.5, 4.5015]] * 2),
        (all_reduce, Kind.TIMES, [[6.0, 18.006]] * 2),
        (all_reduce, Kind.LEFT_OUT, [[1.0, 3.001]] * 2),
        (all_reduce, Kind.MAX, [[2.0, 6.002]] * 2),
        (all_reduce, Kind.BF16, [[3.0, 9.0]] * 2),
        (all_reduce, Kind.TAIL, [[3.0, 3.001], [3.0, 6.002]]),
        (twice, Kind.STALE, [[2.0, 2.0]] * 2),
        (of_two_shapes, Kind.STALE, [[2.0, 2.0, 20.0] * 2] * 2),
        (all_gather, Kind.SKIPPED, [[1.0, 1.0], [2.0, 2.0]]),
        (all_gather, Kind.SWAPPED, [[2.0, 1.0]] * 2),
        (all_gather, Kind.LEFT_OUT, [[1.0, 0.0]] * 2),
        (gather_into, Kind.SKIPPED, [[1.0, 1.0], [2.0, 2.0]]),
        (gather_into, Kind.SWAPPED, [[2.0, 1.0]] * 2),
        (gather_into, Kind.LEFT_OUT, [[1.0, 0.0]] * 2),
        (reduce_scatter, Kind.SKIPPED, [[1.0], [12.0]]),
        (reduce_scatter, Kind.LEFT_OUT, [[1.0], [2.0]]),
        (reduce_scatter, Kind.MAX, [[11.0], [12.0]]),
        (scatter_lists, Kind.SKIPPED, [[1.0], [12.0]]),
        (scatter_lists, Kind.LEFT_OUT, [[1.0], [2.0]]),
        (exchange, Kind.SKIPPED, [[1.0, 2.0], [11.0, 12.0]]),
        (exchange, Kind.SWAPPED, [[11.0, 1.0], [12.0, 2.0]]),
        (broadcast, Kind.SKIPPED, [[1.0], [2.0]]),
        (broadcast, Kind.ROOT, [[2.0], [2.0]]),
        (send, Kind.SKIPPED, [[], [0.0]]),
        (sends_of_two_shapes, Kind.STALE, [[], [1.0, 1.0, 10.0] * 2]),
        (gathered_objects, Kind.SWAPPED, [[1.0, 0.0]] * 2),
        (gathered_objects, Kind.SKIPPED, [[0.0, 0.0], [1.0, 1.0]]),
        (gathered_at_one, Kind.SWAPPED, [[1.0, 0.0], []]),
        (copied_objects, Kind.SKIPPED, [[0.0, 10.0], [1.0, 11.0]]),
        (copied_objects, Kind.STALE, [[1.0, 1.0]] * 2),
        (dealt_objects, Kind.SKIPPED, [[-1.0]] * 2),
        (hooked, Kind.HOOK, [[3.0]] * 2),
        (hooked_after, Kind.HOOK, [[]] * 2),
        (stepped, Kind.STEP, [[-1.5, 1.0], [1.0, 0.0]]),
        (loaded, Kind.LOAD, [[7.0, 7.0, 8.0], [1.0, 1.0, 8.0]]),
        (loaded_by_optimizer, Kind.LOAD, [[4.0], [0.0]]),
        (saved, Kind.SAVE, [[0.0, 0.0, 1.0, 1.0]] * 2),
        (checkpointed, Kind.SAVE, [[0.0, 0.0]] * 2),
        (checkpointed, Kind.LOAD, [[5.0, 5.0], [1.0, 1.0]]),
        (functional_sum, Kind.SKIPPED, [[1.0], [2.0]]),
        (functional_sum, Kind.MAX, [[2.0]] * 2),
        (ring, Kind.SKIPPED, [[0.0], [0.0]]),
        (functional_scatter, Kind.OVER, [[1.0], [2.0]]),
    ],
)
@pytest.mark.ranks(2)
def test_a_fault_alters_what_a_collective_comes_to(
    ranks: Ranks, program: Program, kind: Kind, expected: list[list[float]]
) -> None:
    found = with_fault(ranks, program, kind)
    for got, wanted in zip(found, expected, strict=True):
        assert got.result == pytest.approx(wanted)
    assert sum(one.observation.applied for one in found) > 0
    assert sum(one.observation.changed for one in found) > 0


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        (summed_over_rows, [[11.0], [11.0], [1100.0], [1100.0]]),
        (gathered_over_rows, [[0.0, 1.0], [0.0, 1.0], [2.0, 3.0], [2.0, 3.0]]),
        (scattered_over_rows, [[11.0], [11.0], [2200.0], [2200.0]]),
    ],
)
@pytest.mark.ranks(4)
def test_a_call_may_be_made_over_another_group(ranks: Ranks, program: Program, expected: list[list[float]]) -> None:
    for _ in range(2):
        found = with_fault(ranks, program, Kind.GROUP)
        assert [one.result for one in found] == expected
        assert [one.observation.changed for one in found] == [1] * 4


def fails_to_alter(ctx: Context) -> list[float]:
    def alter(*args: Any) -> None:
        raise ValueError("a call that cannot be altered")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interception, "alter", alter)
        return all_reduce(ctx)


@pytest.mark.ranks(2)
def test_a_call_that_cannot_be_altered_fails_the_program(ranks: Ranks) -> None:
    with pytest.raises(ValueError, match=r"^a call that cannot be altered"):
        with_fault(ranks, fails_to_alter, Kind.OVER)


@pytest.mark.ranks(4)
def test_without_another_group_the_halves_are_two(ranks: Ranks) -> None:
    sites = ranks.run(observe, None, "", mean_over_all, (), {})[0].observation.sites
    first, last = sorted(sites)
    found = ranks.run(observe, Fault(first, Kind.GROUP), "sum", mean_over_all, (), {})
    assert [one.result for one in found] == [[275.0, 1.0]] * 4
    found = ranks.run(observe, Fault(last, Kind.GROUP), "max", mean_over_all, (), {})
    assert [one.observation.applied for one in found] == [1] * 4
    assert [one.result for one in found] == [[277.75, 2.0]] * 4  # they have the same by then


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        (reduced_by_some, [[101.0], [10.0], [101.0], [1000.0]]),
        (summed_large, [[101.0], [1010.0], [101.0], [1010.0]]),
    ],
    ids=["ranks that do not call", "a large tensor"],
)
@pytest.mark.ranks(4)
def test_without_what_the_others_gave_a_call_stays_as_it_is(
    ranks: Ranks, program: Program, expected: list[list[float]]
) -> None:
    found = with_fault(ranks, program, Kind.GROUP)
    assert [one.result for one in found] == expected
    assert [one.observation.applied for one in found] == [0] * 4


@pytest.mark.parametrize(
    ("kind", "sums"),
    [
        (Kind.SKIPPED, [[1.0, 3.001, 2.0, 3.001], [2.0, 6.002, 4.0, 6.002]]),
        (Kind.LEFT_OUT, [[1.0, 3.001, 2.0, 3.001]] * 2),
        (Kind.TIMES, [[6.0, 18.006, 12.0, 18.006]] * 2),
        (Kind.STALE, [[3.0, 9.003, 3.0, 9.003]] * 2),
        (Kind.TAIL, [[3.0, 3.001, 6.0, 3.001], [3.0, 6.002, 6.0, 6.002]]),
    ],
)
@pytest.mark.ranks(2)
def test_a_sum_of_symmetric_memory_has_faults(ranks: Ranks, kind: Kind, sums: list[list[float]]) -> None:
    right = ranks.run(observe, None, "", summed_in_symmetric_memory, (), {})
    (site,) = [site for site in right[0].observation.sites if site.operation == "one_shot_all_reduce"]
    assert kind in list_kinds(right[0].observation.sites[site])
    found = ranks.run(observe, Fault(site, kind), "", summed_in_symmetric_memory, (), {})
    for rank, (one, wanted) in enumerate(zip(found, sums, strict=True)):
        own = [1.0 + rank, 3.001 * (rank + 1), 2.0 * (rank + 1), 3.001 * (rank + 1)]
        assert one.result == pytest.approx([*wanted[:2], *own[:2], *wanted[2:], *own[2:]])
    assert sum(one.observation.changed for one in found) > 0


@pytest.mark.parametrize("program", [drawn_alike, drawn_by_rank])
@pytest.mark.ranks(2)
def test_the_last_rank_may_have_another_seed(ranks: Ranks, program: Program) -> None:
    right = [one.result for one in ranks.run(observe, None, "", program, (), {})]
    wrong = [one.result for one in with_fault(ranks, program, Kind.SEED)]
    assert (right[0] == right[1], wrong[0] == wrong[1]) == (program is drawn_alike, program is drawn_by_rank)
    assert right[0] == wrong[0]


@pytest.mark.parametrize(
    ("call", "expected"),
    [(1, [[1.0, 6.0, 9.0], [2.0, 6.0, 9.0]]), (3, [[3.0, 6.0, 3.0], [3.0, 6.0, 6.0]])],
)
@pytest.mark.ranks(2)
def test_one_call_of_many_may_have_a_fault(ranks: Ranks, call: int, expected: list[list[float]]) -> None:
    (site,) = ranks.run(observe, None, "", steps, (), {})[0].observation.sites
    found = ranks.run(observe, Fault(site, Kind.SKIPPED, call), "", steps, (), {})
    assert [one.result for one in found] == expected
    assert [one.observation.applied for one in found] == [1, 1]


@pytest.mark.ranks(2)
def test_what_a_checkpoint_gets_is_compared(ranks: Ranks) -> None:
    right = ranks.run(observe, None, "", only_saved, (), {})
    for one, wrong in zip(right, with_fault(ranks, only_saved, Kind.SAVE), strict=True):
        assert one.result == wrong.result
        assert one.observation.sent != wrong.observation.sent


@pytest.mark.ranks(2)
def test_what_a_receive_finds_in_its_buffer_is_not_compared(ranks: Ranks) -> None:
    digests = [[one.observation.digest for one in ranks.run(observe, None, "", ring, (), {})] for _ in range(2)]
    assert digests[0] == digests[1]


@pytest.mark.ranks(2)
def test_a_maximum_is_not_swapped_for_itself(ranks: Ranks) -> None:
    (seen, _) = ranks.run(observe, None, "", maximum, (), {})
    (calls,) = seen.observation.sites.values()
    assert Kind.MAX not in list_kinds(calls)
    assert Kind.TIMES in list_kinds(calls)


def two_groups(ctx: Context) -> list[float]:
    first, second = dist.new_group([0, 1]), dist.new_group([0, 1])
    tensors = [torch.ones(2), torch.ones(2)]
    for _ in range(50):
        pairs = list(zip(tensors, (first, second), strict=True))
        if ctx.rank:
            pairs.reverse()
        works = []
        for tensor, group in pairs:
            works.append(dist.all_reduce(tensor.fill_(1), group=group, async_op=True))
        for work in works:
            work.wait()
    return [tensor[0].item() for tensor in tensors]


def scattered_on_two_groups(ctx: Context) -> list[float]:
    pairs = [(torch.empty(1), dist.new_group([0, 1])), (torch.empty(1), dist.new_group([0, 1]))]
    works = []
    for mine, group in reversed(pairs) if ctx.rank else pairs:
        works.append(dist.reduce_scatter_tensor(mine, torch.tensor([1.0, 2.0]), group=group, async_op=True))
    for work in works:
        work.wait()
        work.wait()
    return [mine.item() for mine, _ in pairs]


@pytest.mark.parametrize(
    ("program", "calls", "expected"),
    [(two_groups, 100, [[1.0, 1.0]] * 2), (scattered_on_two_groups, 2, [[1.0, 1.0], [2.0, 2.0]])],
)
@pytest.mark.ranks(2, timeout=60)
def test_asynchronous_calls_on_two_groups_in_other_orders_do_not_hang(
    ranks: Ranks, program: Program, calls: int, expected: list[list[float]]
) -> None:
    found = with_fault(ranks, program, Kind.OVER)
    assert [one.result for one in found] == expected
    assert [one.observation.applied for one in found] == [calls, calls]


def kernels(ctx: Context) -> list[str]:
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    return [name for name in ("allreduce_", "send", "barrier") if has(f"c10d::{name}", "BackendSelect")]


@pytest.mark.ranks(2)
def test_nothing_stays_on_a_rank(ranks: Ranks) -> None:
    before = ranks.run(kernels)
    assert "send" not in before[0]
    seen = ranks.run(observe, None, "", kernels, (), {})
    assert [one.result for one in seen] == [["allreduce_", "send", "barrier"]] * 2  # while a program is observed
    assert ranks.run(kernels) == before


def reduce_otherwise(ctx: Context) -> None:
    dist.all_reduce(torch.ones(1), op=dist.ReduceOp.MAX if ctx.rank else dist.ReduceOp.SUM)


@pytest.mark.ranks(2)
def test_what_ranks_call_otherwise_is_found_while_a_program_is_observed(ranks: Ranks) -> None:
    with pytest.raises(CollectiveMismatch):
        ranks.run(observe, None, "", reduce_otherwise, (), {})


def test_what_is_relied_on_is_there() -> None:
    assert callable(torch.ops.c10d.allreduce_.default._op_dk)
    assert c10d_internals.find_thread_frame(None) is None


class PassesOn(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def in_a_mode(ctx: Context) -> None:
    with PassesOn():  # type: ignore[no-untyped-call]  # torch's
        dist.all_reduce(torch.ones(1))


@pytest.mark.ranks(2)
def test_a_mode_that_passes_a_call_on_is_not_its_line(ranks: Ranks) -> None:
    (site,) = ranks.run(observe, None, "", in_a_mode, (), {})[0].observation.sites
    source, first = inspect.getsourcelines(in_a_mode)
    assert source[site.line - first].strip() == "dist.all_reduce(torch.ones(1))"
    assert site.operation == "all_reduce"


def in_a_thread(ctx: Context) -> list[float]:
    x = torch.tensor([ctx.rank + 1.0])
    thread = threading.Timer(1.0, dist.all_reduce, (x,))  # by then the main thread waits in join
    thread.start()
    thread.join()
    return x.tolist()


@pytest.mark.ranks(2)
def test_a_call_of_a_thread_without_a_line_of_the_user_is_named_by_the_main_threads(ranks: Ranks) -> None:
    found = with_fault(ranks, in_a_thread, Kind.SKIPPED)
    assert [one.result for one in found] == [[1.0], [2.0]]
    source, first = inspect.getsourcelines(in_a_thread)
    for one in found:
        (site,) = one.observation.sites
        assert source[site.line - first].strip() == "thread.join()"
