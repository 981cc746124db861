"""Every collective gives exactly what its definition says, on numbers that need every bit and differ by rank."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf import Context, GiB, KiB, MiB, Ranks
from suites.collectives import reference
from suites.collectives.programs import plain
from suites.collectives.programs.checking import in_turn
from suites.collectives.programs.plain import Program
from suites.collectives.reference import MOVEMENTS, ROOTED, Collective, NeverRight, NeverUntouched
from suites.shared.comparison import assert_unlike
from suites.shared.late_messages import late_messages
from suites.shared.step import Step
from suites.shared.strategies import FLOATS, INTEGERS, dtypes, seeds, worlds
from suites.shared.traffic import Traffic

# Mostly odd ones, on both sides of a page of float32 and beyond what one message of gloo or NCCL's low latency carries.
numels = st.sampled_from([1, 5, 63, 4097, 70_001])
IN_ALL = ("max", "min", "product", "sum")
# torch offers no product to a reduce-scatter of gloo.
OPS = {
    "all_reduce": IN_ALL,
    "reduce": IN_ALL,
    "reduce_scatter": ("max", "min", "sum"),
    "reduce_scatter_then_all_gather": ("max", "min", "sum"),
}


def offered(name: str, dtype: torch.dtype, backend: str) -> tuple[str, ...]:
    """The reductions that the backend has for it."""
    if dtype.is_floating_point:
        return (*OPS[name], *(("avg",) if name == "all_reduce" else ()))
    return (*OPS[name], *(("band",) if name == "all_reduce" and backend == "gloo" else ()))  # NCCL has none


def check(world: Ranks, cases: list[Collective], programs: dict[str, Program] | None = None) -> None:
    """Runs the collectives one after the other, twice and with other inputs, on ranks that compare."""
    named = [((programs or {}).get(case.name) or getattr(plain, case.name), case) for case in cases]
    wrong = [text for of_rank in world.run(in_turn, named) for text in of_rank]
    assert not wrong, "\n".join(wrong)


def some_of(names: Iterable[str]) -> st.SearchStrategy[list[str]]:
    """Up to three, one after the other in any order."""
    return st.lists(st.sampled_from(sorted(names)), min_size=1, max_size=3, unique=True)


def of_world(world: Ranks, **arguments: Any) -> Collective:
    """A collective of all ranks."""
    return Collective(members=tuple(range(world.world_size)), **arguments)


@pytest.mark.ranks(2, 4, 8)
@pytest.mark.examples(0.5)  # the tests below have each combination once
@given(data=st.data(), names=some_of(OPS), numel=numels, dtype=dtypes, seed=seeds)
def test_reductions(
    ranks: Ranks, data: st.DataObject, names: list[str], numel: int, dtype: torch.dtype, seed: int
) -> None:
    world = data.draw(worlds(ranks))
    root = data.draw(st.integers(0, world.world_size - 1))
    bitwise = ("band",) if not dtype.is_floating_point and world.backend == "gloo" else ()  # NCCL has none
    ops = {name: data.draw(st.sampled_from((*OPS[name], *(bitwise if name == "all_reduce" else ())))) for name in names}
    shared = {"numel": numel, "dtype": dtype, "seed": seed, "root": root}
    check(world, [of_world(world, name=name, op=op, **shared) for name, op in ops.items()])


# Of bfloat16 torch hands NCCL a factor in float32, where NCCL reads a bfloat16 (unpackPreMulSum, ProcessGroupNCCL.cpp).
SCALED = st.sampled_from([dtype for dtype in FLOATS if dtype != torch.bfloat16])


@pytest.mark.ranks(2, 4, 8, device="cuda")  # gloo has no such reduction
@given(data=st.data(), numel=numels, dtype=SCALED, seed=seeds)
def test_scaled_sums(ranks: Ranks, data: st.DataObject, numel: int, dtype: torch.dtype, seed: int) -> None:
    world = data.draw(worlds(ranks))
    names = ("all_reduce", "reduce_scatter")
    check(world, [of_world(world, name=n, numel=numel, dtype=dtype, seed=seed, op="premul_sum") for n in names])


@pytest.mark.ranks(2, 3, 4)
def test_every_reduction_of_every_dtype(ranks: Ranks) -> None:
    dtypes_of = {4097: FLOATS + INTEGERS, 70_001: (torch.float32,)}
    check(
        ranks,
        [
            of_world(ranks, name=name, op=op, dtype=dtype, numel=numel, seed=2, root=1)
            for name in OPS
            for numel, some in dtypes_of.items()
            for dtype in some
            for op in (offered(name, dtype, ranks.backend) if numel < 70_001 else ("sum",))
        ],
    )


@pytest.mark.ranks(2, 3)
def test_what_is_no_number_or_too_large_propagates(ranks: Ranks) -> None:
    check(
        ranks,
        [
            of_world(ranks, name=name, op=op, dtype=dtype, numel=97, seed=3, root=1, extremes=True)
            for name in OPS
            for dtype in FLOATS
            for op in offered(name, dtype, ranks.backend)
        ],
    )


@pytest.mark.ranks(2, 4, 8)
@pytest.mark.examples(0.5)
@given(data=st.data(), names=some_of(MOVEMENTS), numel=numels, dtype=dtypes, seed=seeds)
def test_movements(
    ranks: Ranks, data: st.DataObject, names: list[str], numel: int, dtype: torch.dtype, seed: int
) -> None:
    world = data.draw(worlds(ranks))
    size = world.world_size
    root = data.draw(st.integers(0, size - 1))
    splits: tuple[tuple[int, ...], ...] = ()
    if "all_to_all_uneven" in names:
        row = st.tuples(*[st.sampled_from([0, 1, 2, 5, numel])] * size)
        splits = data.draw(st.tuples(*[row] * size))
    shared = {"numel": numel, "dtype": dtype, "seed": seed, "root": root, "splits": splits}
    check(world, [of_world(world, name=name, **shared) for name in names])


# Where NCCL changes its protocol and algorithm; an odd number of elements too.
SIZES = {"1KiB": KiB, "1MiB": MiB, "64MiB": 64 * MiB, "1GiB": GiB}


@pytest.mark.ranks(2, 4, 8, device="cuda")
@pytest.mark.parametrize("nbytes", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("name", ["all_reduce", "all_gather", "all_to_all", "broadcast", "reduce_scatter", "send_recv"])
def test_large_on_gpus(ranks: Ranks, name: str, nbytes: int) -> None:
    size = ranks.world_size
    for dtype, more in ((torch.bfloat16, 0), (torch.float32, 1)):
        share = size if name in ("all_gather", "all_to_all", "reduce_scatter") else 1
        case = of_world(ranks, name=name, numel=nbytes // dtype.itemsize // share + more, dtype=dtype, seed=5, root=1)
        check(ranks, [case])


OPERATORS = {
    "all_reduce": ["c10d.allreduce_"],
    "all_gather": ["c10d._allgather_base_"],
    "reduce_scatter": ["c10d._reduce_scatter_base_"],
    "reduce_scatter_then_all_gather": ["c10d._reduce_scatter_base_", "c10d._allgather_base_"],
    "broadcast": ["c10d.broadcast_"],
    "reduce": ["c10d.reduce_"],
    "gather": ["c10d.gather_"],
    "scatter": ["c10d.scatter_"],
    "all_to_all": ["c10d.alltoall_base_"],
    "all_to_all_uneven": ["c10d.alltoall_base_"],
    "send_recv": ["c10d.send"],
}
"""What each collective is in the dispatcher: one of more bytes could give the same numbers."""


def operators(ctx: Context, collective: Collective) -> list[str]:
    """What a step calls."""
    step, traffic = getattr(plain, collective.name)(ctx, collective=collective), Traffic()
    with traffic:
        step()
    return [call.operator for call in traffic.calls]


@pytest.mark.ranks(2)
@pytest.mark.parametrize("name", OPERATORS)
def test_a_collective_is_the_one_that_it_is_called(ranks: Ranks, name: str) -> None:
    splits = ((1, 2), (3, 4)) if name == "all_to_all_uneven" else ()
    case = of_world(ranks, name=name, op="sum", numel=8, dtype=torch.float32, seed=1, root=0, splits=splits)
    assert ranks.run(operators, case) == [OPERATORS[name]] * 2


@pytest.mark.ranks(2, 3, 4)
@pytest.mark.parametrize("name", ROOTED)
def test_every_rank_is_root_once(ranks: Ranks, name: str) -> None:
    roots = range(ranks.world_size)
    check(ranks, [of_world(ranks, name=name, numel=7, dtype=torch.float32, seed=9, root=root) for root in roots])


@pytest.mark.ranks(2, 3, 4)
@pytest.mark.parametrize("numel", [5, 70_001])
def test_every_movement(ranks: Ranks, numel: int) -> None:
    size = ranks.world_size
    splits = tuple(tuple(numel * ((i + 2 * j) % 3) // 2 for j in range(size)) for i in range(size))
    shared = {"numel": numel, "seed": 6, "root": 1, "splits": splits}
    dtypes_of = {name: FLOATS[at % 4] for at, name in enumerate(MOVEMENTS)}
    check(ranks, [of_world(ranks, name=name, dtype=dtype, **shared) for name, dtype in dtypes_of.items()])


def writing_beside(ctx: Context, *, collective: Collective, x: torch.Tensor) -> Step[torch.Tensor]:
    """An all-gather that also writes the element after its input."""
    step, after = plain.all_gather(ctx, collective=collective, x=x), x.storage_offset() + x.numel()

    def writing() -> torch.Tensor:
        x.as_strided((1,), (1,), after).zero_()
        return step()

    return writing


@pytest.mark.ranks(2)
@pytest.mark.parametrize(
    ("program", "kind"),
    [(plain.all_gather, NeverRight), (plain.all_gather, NeverUntouched), (writing_beside, Collective)],
    ids=["a wrong result", "a written input", "a write beside the input"],
)
def test_what_is_wrong_is_reported_of_each_step(ranks: Ranks, program: Program, kind: type[Collective]) -> None:
    case = kind(name="all_gather", numel=1, dtype=torch.float32, seed=1, members=(0, 1))
    told = ranks.run(in_turn, [(program, case)])
    steps = [[text.partition(":")[0] for text in of_rank] for of_rank in told]
    assert steps == [["step 1", "step 2"]] * ranks.world_size, told


def with_late_messages(ctx: Context, named: list[tuple[Program, Collective]]) -> list[str]:
    """What is wrong with collectives whose messages arrive as late as they may."""
    with late_messages():
        return in_turn(ctx, named)


@pytest.mark.ranks(2, 4, device="cpu")
def test_a_ring_waits_for_what_it_receives(ranks: Ranks) -> None:
    ring = of_world(ranks, name="send_recv", numel=5, dtype=torch.float32, seed=6)
    assert ranks.run(with_late_messages, [(plain.send_recv, ring)]) == [[]] * ranks.world_size


@pytest.mark.ranks(2, 4, 8)
def test_barrier(ranks: Ranks) -> None:
    """Nobody leaves before the last rank has come, and only that one is late, by its lateness."""
    lateness = 0.02

    def timed(ctx: Context, *, late: int) -> tuple[list[float], float, float, float]:
        sleep, slept = time.sleep, list[float]()

        def note(seconds: float) -> None:
            slept.append(seconds)
            sleep(seconds)

        began = time.monotonic()
        with mock.patch.object(time, "sleep", note):
            return slept, began, *plain.barrier(ctx, late=late, seconds=lateness)

    for late in range(ranks.world_size):
        times = ranks.run(timed, late=late)
        slept = [seconds for seconds, *_ in times]
        assert slept == [[lateness] * (rank == late) for rank in range(ranks.world_size)], f"rank {late} is late"
        _, began, came, _ = times[late]
        assert came - began >= lateness, f"rank {late} was {came - began:.3f} s late, not {lateness} s"
        last_came = max(came for _, _, came, _ in times)
        for rank, (_, _, _, left) in enumerate(times):
            assert left >= last_came, f"rank {rank} left {last_came - left:.3f} s before the last rank came"


@pytest.mark.ranks(2, 3, 4)
def test_your_own_collective(ranks: Ranks) -> None:
    """Yours in place of ours: a program that takes the same arguments and returns the step."""

    def all_reduce_by_gathering(
        ctx: Context, *, collective: Collective, x: torch.Tensor | None = None
    ) -> Step[torch.Tensor]:
        x = collective.start(ctx.rank, ctx.device) if x is None else x
        parts = [torch.empty_like(x) for _ in range(ctx.world_size)]

        def step() -> torch.Tensor:
            dist.all_gather(parts, x)
            return torch.stack(parts).sum(dim=0)

        return step

    case = of_world(ranks, name="all_reduce", numel=4097, dtype=torch.float32, seed=1)
    check(ranks, [case], {"all_reduce": all_reduce_by_gathering})


@pytest.mark.parametrize("name", ["all_reduce", "all_gather"])
@pytest.mark.parametrize("dtype", FLOATS + INTEGERS, ids=str)
def test_no_two_ranks_and_no_two_steps_start_with_the_same(name: str, dtype: torch.dtype) -> None:
    """Were they alike, a share of another rank, or of the step before, would be right."""
    case = Collective(name=name, numel=200, dtype=dtype, seed=1, members=(0, 1, 2))
    assert_unlike(
        {
            f"rank {rank}, step {step}": case.again(step).start(rank, torch.device("cpu"))
            for rank in case.members
            for step in range(3)
        }
    )


@pytest.mark.parametrize("name", ["all_reduce", "all_gather"])
@pytest.mark.parametrize("chunk", [reference.CHUNK, 3], ids=["whole", "in pieces"])
def test_one_wrong_element_is_told(monkeypatch: pytest.MonkeyPatch, name: str, chunk: int) -> None:
    """Also one that is no number, where only a number is right, and in each piece of those that are compared."""
    case = Collective(name=name, numel=7, dtype=torch.float32, seed=1, members=(0, 1))
    inputs = [case.start(rank, torch.device("cpu")) for rank in range(2)]
    right = inputs[0] + inputs[1] if name == "all_reduce" else torch.cat(inputs)
    monkeypatch.setattr(reference, "CHUNK", chunk)
    for rank, made in enumerate(inputs):
        assert torch.equal(case.start(rank, torch.device("cpu")).view(torch.int32), made.view(torch.int32))
        case.assert_untouched(rank, made)
        with pytest.raises(AssertionError, match="its input"):
            case.assert_untouched(rank, torch.cat((made[:6], made[:1])))
    case.assert_right(1, right)
    for place in range(len(right)):
        for value in (torch.nan, torch.inf, 0.0):
            wrong = right.clone()
            wrong[place] = value
            told = rf"element {place} of \d+ is {value}, not .*; 1 of the [137] that were compared are wrong"
            with pytest.raises(AssertionError, match=told):
                case.assert_right(1, wrong)


def test_splits_of_other_ranks_are_refused() -> None:
    arguments: dict[str, Any] = {"numel": 0, "dtype": torch.float32, "seed": 1, "members": (0, 1)}
    with pytest.raises(ValueError, match="splits of 2 ranks are 2 rows of 2, got rows of 2 and 1"):
        Collective(name="all_to_all_uneven", splits=((1, 2), (1,)), **arguments)
