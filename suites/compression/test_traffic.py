"""What crosses the links: the bytes that a rank sends with each hook, by collective."""

# No postponed annotations here: DistributedDataParallel looks at a hook's, and takes no strings.

import functools
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist

from pytest_gpuperf import Ranks
from suites.compression.programs import averaging as programs
from suites.compression.programs import quantized

Future = torch.futures.Future[torch.Tensor]

SHAPE = (64, 48)
NUMEL = 3072
# Of N elements to R ranks, by half of an all_reduce: 4, 2 or 1 bytes each; besides, with 1 byte a float32 scale for
# each 256 (so many that R blocks of 256 divide them: no padding). PowerSGD: a column and a row.
WIDTHS = {
    "float32": 4 * NUMEL,
    "bfloat16": 2 * NUMEL,
    "float16": 2 * NUMEL,
    "int8": NUMEL + 4 * 12,
    "float8": NUMEL + 4 * 12,
    "int8 with feedback": NUMEL + 4 * 12,
    "float8 with feedback": NUMEL + 4 * 12,
    "PowerSGD": 4 * (64 + 48),
}


def expected(name: str, world_size: int) -> dict[str, int]:
    """By collective: a rank sends (R - 1) / R of the bytes in the first half of an all_reduce, and again in the second.

    Gathering everybody's whole gradient takes R - 1 times the bytes, which is as many with 2 ranks, and with 4 is not.
    """
    half = WIDTHS[name] * (world_size - 1) // world_size
    if name.partition(" ")[0] in ("int8", "float8"):
        return {"all_to_all": half, "all_gather": half}
    return {"all_reduce": 2 * half}


@pytest.mark.ranks(2, 4)
def test_bytes_on_the_wire(ranks: Ranks) -> None:
    sent = {
        name: ranks.run(programs.bytes_sent, hook=hook, state=state, shape=SHAPE)
        for name, (hook, state) in programs.HOOKS.items()
    }
    assert sent == {name: [expected(name, ranks.world_size)] * ranks.world_size for name in WIDTHS}


@pytest.mark.ranks(2, 4)
def test_bytes_on_the_wire_without_a_hook(ranks: Ranks) -> None:
    """DistributedDataParallel's own all_reduce, which C++ calls."""
    sent = ranks.run(programs.bytes_sent, hook=None, shape=SHAPE)
    assert sent == [expected("float32", ranks.world_size)] * ranks.world_size


def with_gradients_of_all(state: quantized.Quantized, bucket: dist.GradBucket) -> Future:
    """Wrong on purpose: everybody's float32 gradients cross the links besides."""
    buffer = bucket.buffer()
    dist.all_gather([torch.empty_like(buffer) for _ in range(dist.get_world_size())], buffer)
    return quantized.quantized_hook(state, bucket)


def with_a_broadcast(state: quantized.Quantized, bucket: dist.GradBucket) -> Future:
    """Wrong on purpose: rank 0's float32 gradients cross the links besides."""
    dist.broadcast(bucket.buffer().clone(), 0)
    return quantized.quantized_hook(state, bucket)


def with_a_late_broadcast(state: quantized.Quantized, bucket: dist.GradBucket) -> Future:
    """Wrong on purpose: the same in a callback, on whichever thread calls back."""
    mean = quantized.quantized_hook(state, bucket).value()
    work = dist.all_reduce(mean.new_zeros(0), async_op=True)
    assert work is not None

    def late(_: Future) -> torch.Tensor:
        dist.broadcast(mean.clone(), 0)
        return mean

    future: Future = work.get_future().then(late)
    return future


@pytest.mark.deliberate_break
@pytest.mark.ranks(2, 4)
@pytest.mark.parametrize(
    ("hook", "besides"),
    [
        # What is not known is noted with all tensors that it is called with: R to receive in, and one to send.
        (with_gradients_of_all, lambda world_size: {"c10d.allgather_": (world_size + 1) * 4 * NUMEL}),
        (with_a_broadcast, lambda world_size: {"broadcast": 4 * NUMEL}),
        (with_a_late_broadcast, lambda world_size: {"all_reduce": 0, "broadcast": 4 * NUMEL}),
    ],
    ids=["gradients of all", "broadcast", "late broadcast"],
)
def test_what_is_sent_besides_is_seen(
    ranks: Ranks, hook: programs.Hook, besides: Callable[[int], dict[str, int]]
) -> None:
    int8 = functools.partial(quantized.Quantized, quantized.INT8)
    sent = ranks.run(programs.bytes_sent, hook=hook, state=int8, shape=SHAPE)
    assert sent == [expected("int8", ranks.world_size) | besides(ranks.world_size)] * ranks.world_size


def gathering_whole_gradients(state: quantized.Quantized, bucket: dist.GradBucket) -> Future:
    """Wrong on purpose: right means, but of everybody's whole gradient, as the hooks of torch take them."""
    buffer, world_size = bucket.buffer(), dist.get_world_size()
    blocks, scales = state.quantizer.quantize(buffer.view(-1, state.block))
    gathered, all_scales = blocks.repeat(world_size, 1), scales.repeat(world_size, 1)
    dist.all_gather_into_tensor(gathered, blocks)
    dist.all_gather_into_tensor(all_scales, scales)
    mean = state.quantizer.dequantize(gathered, all_scales).view(world_size, -1).mean(dim=0)
    done: Future = torch.futures.Future(devices=[buffer.device] if buffer.device.type == "cuda" else None)
    done.set_result(buffer.copy_(mean))
    return done


@pytest.mark.deliberate_break
@pytest.mark.ranks(2, 4)
def test_whole_gradients_gathered_are_seen(ranks: Ranks) -> None:
    """(R - 1) of the bytes: as many as 2 (R - 1) / R with 2 ranks, twice as many with 4."""
    degree = ranks.world_size
    int8 = functools.partial(quantized.Quantized, quantized.INT8)
    sent = ranks.run(programs.bytes_sent, hook=gathering_whole_gradients, state=int8, shape=SHAPE)
    assert sent == [{"all_gather": (degree - 1) * WIDTHS["int8"]}] * degree
    assert sum(sent[0].values()) * 2 == degree * sum(expected("int8", degree).values())
