"""The programs that are raced compute what the whole model does, and their times are of what each rank did."""

from __future__ import annotations

import math
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from pytest_gpuperf import Context, Infeasible, Ranks
from suites.pipeline_parallel.programs import racing
from suites.pipeline_parallel.programs.racing import Model, RankTime
from suites.pipeline_parallel.reference.promises import EQUAL_BUBBLES, Measured, bubbles, peak_bytes, waits
from suites.pipeline_parallel.reference.schedules import Op, table_of
from suites.shared.comparison import assert_close, assert_in_float32, assert_unlike
from suites.shared.delays import Moving, moved_by
from suites.shared.step import gradient_of, second

SCHEDULES = ["GPipe", "1F1B", "Interleaved1F1B", "InterleavedZeroBubble", "ZBVZeroBubble"]
WORLD_SIZE = 2


def small(**changed: Any) -> Model:
    """A model whose microbatches and rows differ in number, so that nothing stands for something else."""
    sizes: dict[str, Any] = {
        "blocks": 4,
        "width": 4,
        "hidden": 6,
        "microbatches": 4,
        "rows": 3,
        "seed": 5,
        "dtype": torch.float64,
    }
    return Model(**(sizes | changed))


def whole_step(model: Model, device: torch.device) -> torch.Tensor:
    """Loss and norm of the whole batch at once, from the weights alone."""
    hidden, target = model.batch(device)
    weights = [
        weight.detach().clone() for index in range(model.blocks) for weight in model.block(index, device).parameters()
    ]
    shift, *leaves = (weight.requires_grad_() for weight in (torch.zeros_like(hidden[0]), *weights))
    hidden = hidden + shift
    for up, down in zip(leaves[::2], leaves[1::2], strict=True):
        hidden = hidden + functional.gelu(hidden @ up.T) @ down.T
    loss = (hidden - target).square().mean()
    gradients = torch.autograd.grad(loss, [shift, *leaves])
    norm = torch.stack([gradient.square().sum() for gradient in gradients]).sum().sqrt()
    return torch.stack([loss.detach(), norm])


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_raced_step_is_the_whole_models(ranks: Ranks, schedule: str) -> None:
    """The second step counts: its gradients begin at zero again."""
    model = small(blocks=2 * ranks.world_size, microbatches=2 * ranks.world_size)
    # On the ranks' device, whose generators draw other numbers than the CPU's.
    expected = ranks.run(lambda ctx: whole_step(model, ctx.device))
    for rank, got in enumerate(ranks.run(second, racing.train, schedule=schedule, model=model)):
        assert_close(got, expected[rank], f"rank {rank}, loss and norm", rtol=1e-12)
    for whole in ranks.run(lambda ctx: racing.whole_loss(model, ctx.device)):
        assert_close(whole, expected[0][0], "the loss block by block", rtol=1e-12)


def test_no_two_blocks_are_alike_and_targets_are_no_inputs() -> None:
    """With equal blocks a stage that holds another one's would train right."""
    model, cpu = small(), torch.device("cpu")
    for name in ("up.weight", "down.weight"):
        assert_unlike({f"block {index}": model.block(index, cpu).get_parameter(name) for index in range(model.blocks)})
    x, target = model.batch(cpu)
    assert_unlike({"input": x, "target": target})


@pytest.mark.ranks(WORLD_SIZE)
def test_operations_are_those_of_torchs_counter(ranks: Ranks) -> None:
    model = small()

    def counted(ctx: Context) -> int:
        step = racing.train(ctx, schedule="Interleaved1F1B", model=model)
        step()  # the first one exchanges shapes
        with FlopCounterMode(display=False) as counter:
            step()
        return int(counter.get_total_flops())

    assert sum(ranks.run(counted)) == model.flop


@pytest.mark.ranks(WORLD_SIZE)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_each_operation_is_timed_once(ranks: Ranks, schedule: str) -> None:
    """What each rank's clock saw is the schedule's table, in its order and within the step."""
    model = small()
    table = table_of(schedule, WORLD_SIZE, racing.stages_of(schedule, WORLD_SIZE), model.microbatches)
    for rank, steps in enumerate(ranks.run(racing.rank_times, schedule=schedule, model=model, steps=2)):
        assert len(steps) == 2
        for step in steps:
            planned = [(op.stage, op.kind) for group in table[rank] for op in group]
            assert [(stage, kind) for stage, kind, _ in step.ops] == planned, f"rank {rank}"
            assert all(seconds > 0 for _, _, seconds in step.ops)
            assert 0 < step.busy < step.span


def host_moment(device: torch.device) -> racing.Moment:
    """Return a moment of the host's clock, on GPUs too."""
    return MOMENT(torch.device("cpu"))


MOMENT = racing.Moment
WAIT = 1000.0
"""Seconds of a moved clock; a forward takes one."""


def with_long_waits(ctx: Context, *, model: Model) -> tuple[float, float]:
    """A step's busy time and span on a clock that forwards move by a second, and waits for other ranks by many."""
    forward, wait = Moving(racing.Block, "forward", lambda *_: 1.0), Moving(dist.Work, "wait", lambda *_: WAIT)
    with mock.patch.object(racing, "Moment", host_moment), moved_by(forward, wait):
        (step,) = racing.rank_times(ctx, schedule="GPipe", model=model, steps=1)
    return step.busy, step.span


@pytest.mark.ranks(WORLD_SIZE, device="cpu")  # a GPU has a clock of its own
def test_what_a_rank_waits_for_is_no_work(ranks: Ranks) -> None:
    model = small(blocks=2)
    for rank, (busy, span) in enumerate(ranks.run(with_long_waits, model=model)):
        assert busy == model.microbatches, f"rank {rank} has a block, whose forwards take a second each"
        assert span > WAIT, f"rank {rank} waits for the other one in a step"


def spans_after_long_meetings(ctx: Context, *, model: Model) -> list[float]:
    """Spans of as many steps as there are ranks, on a clock that each step moves by a second, and meetings by many.

    The first step of all takes long, as it does where it exchanges shapes and finds kernels.
    """
    meetings, runs = 0, 0

    def meets(*_: object) -> float:
        nonlocal meetings
        meetings += 1
        return WAIT

    def run(_: object) -> float:
        nonlocal runs
        assert meetings == runs + 1, "all ranks meet once before each step"
        runs += 1
        return 1.0 if runs > 1 else WAIT

    meeting, step = Moving(dist, "all_reduce", meets), Moving(racing.Pipeline, "run", run)
    with mock.patch.object(racing, "Moment", host_moment), moved_by(meeting, step):
        times = racing.rank_times(ctx, schedule="1F1B", model=model, steps=ctx.world_size)
    return [one.span for one in times]


@pytest.mark.ranks(2, 3, device="cpu")
def test_a_step_begins_when_all_ranks_have_come(ranks: Ranks) -> None:
    """Whoever is late, nobody's wait for it is a part of the step; and the first one is not timed."""
    model = small(blocks=2 * ranks.world_size)
    assert ranks.run(spans_after_long_meetings, model=model) == [[1.0] * ranks.world_size] * ranks.world_size


@pytest.mark.ranks(WORLD_SIZE)
@pytest.mark.parametrize(
    ("schedule", "changed", "message"),
    [
        ("GPipe", {"blocks": 3}, "3 blocks make no 2 equal stages"),
        ("Interleaved1F1B", {"blocks": 2}, "2 blocks make no 4 equal stages"),
        ("Interleaved1F1B", {"microbatches": 5}, "multiple of the number of rounds"),
    ],
)
def test_what_cannot_run_is_told(ranks: Ranks, schedule: str, changed: dict[str, int], message: str) -> None:
    with pytest.raises(Infeasible, match=message):
        ranks.run(racing.train, schedule=schedule, model=small(**changed))


@pytest.mark.ranks(WORLD_SIZE, device="cpu")
def test_a_schedule_that_torch_cannot_run_is_left_out(ranks: Ranks) -> None:
    """With torch as it was before 2.12, whose V-shaped schedules send to their own rank."""

    def program(ctx: Context) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.delattr(PipelineStage, "_warmup_forward_vote", raising=False)
            racing.Pipeline(ctx, "ZBVZeroBubble", small())

    with pytest.raises(Infeasible, match="sends from a rank to itself"):
        ranks.run(program)


def timed(schedule: str, ranks: int, microbatches: int) -> list[list[RankTime]]:
    """One step in which a forward takes 1 s, a whole backward 2 s, and each half of one 1 s."""
    lasting = {"F": 1.0, "B": 2.0, "I": 1.0, "W": 1.0}
    table = table_of(schedule, ranks, racing.stages_of(schedule, ranks), microbatches)
    return [
        [RankTime(100.0, [(op.stage, op.kind, lasting[op.kind]) for group in row for op in group])] for row in table
    ]


@pytest.mark.parametrize(
    ("schedule", "of_two", "of_four"),
    # (p - 1) / (v m + p - 1); of zero bubble (p - 1)(F + I - W) = p - 1 s beside 2 * 8 * 3 s; of the V none once begun,
    # where rank r begins after r forwards.
    [
        ("GPipe", 1 / 9, 3 / 11),
        ("1F1B", 1 / 9, 3 / 11),
        ("Interleaved1F1B", 1 / 17, 3 / 19),
        ("InterleavedZeroBubble", 1 / 49, 3 / 51),
        ("ZBVZeroBubble", 1 / 49, 3 / 51),
    ],
)
def test_promised_bubbles(schedule: str, of_two: float, of_four: float) -> None:
    for world_size, expected in ((2, of_two), (4, of_four)):
        assert bubbles(schedule, 8, timed(schedule, world_size, 8)) == pytest.approx([expected] * world_size)


def test_an_operation_takes_the_median_of_all_steps() -> None:
    """In nanoseconds; one step that was disturbed, the last one or the first, changes nothing."""
    steps = [RankTime(9.0, [(0, "F", first), (0, "B", 2.0), (0, "F", second)]) for first, second in ((1, 9), (2, 4))]
    measured = Measured([steps, [RankTime(9.0, [(1, "F", taken)]) for taken in (0.25, 7.0, 0.5)]])
    assert measured.of(Op(0, "F", 0)) == measured.of(Op(0, "F", 1)) == 3 * 10**9  # between 2 and 4 s of 1, 2, 4 and 9
    assert measured.of(Op(1, "F", 0)) == 10**9 // 2


def test_moments_of_a_gpu_are_those_of_its_stream() -> None:
    """CUDA's events count milliseconds, from the one that is asked to the one that it is given."""

    class Event:
        milliseconds = 0.0

        def __init__(self, *, enable_timing: bool) -> None:
            assert enable_timing
            self.at: float | None = None

        def record(self) -> None:
            self.at = Event.milliseconds

        def elapsed_time(self, later: Event) -> float:
            assert self.at is not None
            assert later.at is not None
            return later.at - self.at

    with mock.patch.object(torch.cuda, "Event", Event):
        begin = racing.Moment(torch.device("cuda"))
        Event.milliseconds = 250.0
        assert begin.until(racing.Moment(torch.device("cuda"))) == 0.25


@pytest.mark.parametrize("world_size", [2, 4])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_rank_is_as_busy_in_every_schedule(schedule: str, world_size: int) -> None:
    """3 s for each microbatch and stage, whether a backward is whole or in halves; all else is waiting."""
    busy = 3.0 * 8 * racing.stages_of(schedule, world_size) / world_size
    for (step,) in timed(schedule, world_size, 8):
        assert step.busy == busy
        assert waits([step]) == pytest.approx([1 - busy / 100.0])


def test_waits_are_what_the_slowest_rank_leaves() -> None:
    first = RankTime(4.0, [(0, "F", 1.0), (0, "B", 2.0)])
    assert waits([first, RankTime(5.0, [(1, "F", 1.0)])]) == pytest.approx([2 / 5, 4 / 5])


@pytest.mark.parametrize(
    ("schedule", "world_size", "in_flight"),
    # 1F1B keeps p microbatches on rank 0, Interleaved1F1B 2(p - 1) + (v - 1)p + 1: see test_reference.py.
    [("GPipe", 2, 8), ("1F1B", 2, 2), ("Interleaved1F1B", 2, 5), ("1F1B", 4, 4), ("Interleaved1F1B", 4, 11)],
)
def test_promised_memory(schedule: str, world_size: int, in_flight: int) -> None:
    """Weights and gradients are of 2 blocks of 2 x 24 numbers; a block saves 3 rows of 16, a stage has 3 rows of 4."""
    blocks = 1 if schedule == "Interleaved1F1B" else 2
    weights = 2 * 2 * 48
    expected = 8 * (weights + in_flight * (blocks * 3 * 16 + 3 * 4))
    assert peak_bytes(schedule, small(blocks=2 * world_size, microbatches=8), world_size) == expected


def test_schedules_with_equal_bubbles_are_those_without_halves() -> None:
    halved = [name for name in SCHEDULES if any(kind in "IW" for _, kind, _ in timed(name, 2, 8)[0][0].ops)]
    assert [name for name in SCHEDULES if name not in halved] == [name for name in SCHEDULES if name in EQUAL_BUBBLES]
    assert math.isclose(sum(bubbles("GPipe", 8, timed("GPipe", 2, 8))), 2 / 9)


def test_a_loss_of_16_bits_is_computed_in_float32() -> None:
    output, target = torch.randn(2, 32, 8, generator=torch.Generator().manual_seed(1)).bfloat16()
    assert_in_float32(racing.squared_error(output, target), (output.double() - target.double()).square().mean(), "loss")


@pytest.mark.ranks(1)
def test_the_norm_of_16_bit_gradients_is_computed_in_float32(ranks: Ranks) -> None:
    """One stage takes the steps of one device: its gradients are the same to the last bit."""
    model = small(dtype=torch.bfloat16)

    def program(ctx: Context) -> tuple[torch.Tensor, torch.Tensor]:
        blocks = [model.entry(ctx.device), *(model.block(index, ctx.device) for index in range(model.blocks))]
        whole = nn.Sequential(*blocks)
        for x, target in zip(*(part.split(model.rows) for part in model.batch(ctx.device)), strict=True):
            (racing.squared_error(whole(x), target) / model.microbatches).backward()
        exact = torch.cat([gradient_of(weight).double().flatten() for weight in whole.parameters()]).square().sum()
        return racing.train(ctx, schedule="GPipe", model=model)()[1], exact.sqrt()

    ((got, exact),) = ranks.run(program)
    assert_in_float32(got, exact, "norm")
