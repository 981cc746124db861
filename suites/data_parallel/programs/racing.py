"""Data parallelism as people write it, for timing: DataParallel, DistributedDataParallel, and staged replicas.

R ranks, B rows of input for each, L layers of W x W weights. A step takes a batch from the host's memory through
forward and backward, and leaves the mean of all rows' gradients. All ways train the same perceptron on the same
batches, of which there are three in turn: a step with stale inputs gives other gradients.

A model of its own: what is checked elsewhere is small and returns everything, and this one fills a GPU and returns one
small number, so that nothing else is timed. ``test_racing.py`` compares each way with one device.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DataParallel, DistributedDataParallel

from pytest_gpuperf import Context
from suites.shared.step import Step, Tensors, excerpt, gradient_of
from suites.shared.watchdog import await_watchdog

BATCHES = 3
"""In turn; more than the places that ``staged`` has for them, so that each step must copy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """The sizes of the perceptron and of a rank's batch."""

    layers: int
    width: int
    rows: int
    """The number of rows of a rank's batch."""
    dtype: torch.dtype

    @property
    def flop(self) -> float:
        """The floating-point operations of forward and backward on one rank.

        The first layer's input needs no gradient.
        """
        return 2.0 * self.rows * self.width**2 * (3 * self.layers - 1)

    @property
    def gradients(self) -> int:
        """Bytes of all gradients."""
        return self.layers * self.width**2 * self.dtype.itemsize

    @property
    def batch(self) -> int:
        """Bytes of a rank's input."""
        return self.rows * self.width * self.dtype.itemsize


class Held:
    """What a rank holds of the gradients after a step; no tensor to those who compare what steps return."""

    def __init__(self, gradients: Tensors | None) -> None:
        """Keeps them; None on a rank whose process holds none."""
        self.gradients = gradients


Output = tuple[torch.Tensor, Held]
"""What all ways have in common, and what this rank holds.

In DataParallel rank 0's process alone holds gradients. So the first is rank 0's excerpt as one tensor, and on the other
ranks it is empty.
"""


def perceptron(sizes: Sizes, seed: int, device: torch.device | str) -> nn.Sequential:
    """Returns the same network on all ranks: ReLU between the layers, weights that keep activations near 1."""
    generator = torch.Generator(device).manual_seed(seed)
    layers: list[nn.Module] = []
    for _ in range(sizes.layers):
        linear = nn.Linear(sizes.width, sizes.width, bias=False, dtype=sizes.dtype, device=device)
        with torch.no_grad():
            linear.weight.normal_(std=(2 / sizes.width) ** 0.5, generator=generator)
        layers += [linear, nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def rows_of(ctx: Context, sizes: Sizes, rank: int, number: int) -> torch.Tensor:
    """A rank's rows, on the device; another rank and another number have others."""
    generator = torch.Generator(ctx.device).manual_seed(1000 * rank + number)
    return torch.randn(sizes.rows, sizes.width, dtype=sizes.dtype, device=ctx.device, generator=generator)


def batch_of(ctx: Context, sizes: Sizes, rank: int, number: int) -> torch.Tensor:
    """A rank's rows, on the host; another rank and another number have others."""
    return rows_of(ctx, sizes, rank, number).cpu()


def loss_of_rows(output: torch.Tensor) -> torch.Tensor:
    """A mean over rows, in which each output has a target of its own sign and size."""
    target = torch.linspace(-1, 1, output.shape[-1], dtype=torch.float32, device=output.device)
    return functional.mse_loss(output.float(), target.expand_as(output))


def weights_of(module: nn.Module) -> Tensors:
    """The gradients of the first, the middle and the last layer."""
    weights = list(module.parameters())
    return {f"layer {index}": gradient_of(weights[index]) for index in (0, len(weights) // 2, len(weights) - 1)}


def report(ctx: Context, gradients: Tensors | None) -> Output:
    """A step's output."""
    if gradients is None:
        return torch.empty(0), Held(None)
    found = excerpt(gradients)
    common = torch.cat([value.reshape(-1) for value in found.values()])
    return common if ctx.rank == 0 else common[:0], Held(found)


def data_parallel(ctx: Context, *, sizes: Sizes, seed: int) -> Step[Output]:
    """DataParallel: rank 0's process drives all ranks' GPUs, and its batch has all ranks' rows.

    The other ranks' processes wait on the host, and launch nothing: a kernel of theirs that waits for rank 0, as a
    collective does, would take turns with rank 0's kernels on the same GPU. They wake up 0.1 ms after rank 0 or so.
    """
    # Ranks prepare programs equally often, and the store outlives them.
    preparation = ctx.store.add(f"DataParallel of rank {ctx.rank}", 1)
    numbers = itertools.count()

    def key() -> str:
        return f"DataParallel {preparation}, step {next(numbers)}"

    if ctx.rank:

        def wait() -> Output:
            ctx.store.wait([key()])
            return report(ctx, None)

        return wait
    module = perceptron(sizes, seed, ctx.device)
    # Without GPUs it is the module alone.
    wrapped = DataParallel(module, list(range(ctx.world_size)))
    batches = itertools.cycle(
        [torch.cat([batch_of(ctx, sizes, rank, number) for rank in range(ctx.world_size)]) for number in range(BATCHES)]
    )

    def step() -> Output:
        # DataParallel scatters on streams of its own. Launched before the clock has started, that work would be done
        # beside the clock, and nobody would count it.
        synchronize(ctx)
        module.zero_grad(set_to_none=True)
        loss_of_rows(wrapped(next(batches))).backward()
        output = report(ctx, weights_of(module))
        synchronize(ctx)
        ctx.store.set(key(), "")
        return output

    return step


def synchronize(ctx: Context) -> None:
    """Waits for what the current stream has to do."""
    if ctx.device.type == "cuda":
        torch.cuda.current_stream().synchronize()


def distributed_data_parallel(ctx: Context, *, sizes: Sizes, seed: int) -> Step[Output]:
    """DistributedDataParallel with its defaults; each rank copies its pinned batch when the step begins."""
    module = perceptron(sizes, seed, ctx.device)
    wrapped = DistributedDataParallel(module)
    batches = itertools.cycle(pinned_batches(ctx, sizes))

    def step() -> Output:
        wrapped.zero_grad(set_to_none=True)
        loss_of_rows(wrapped(next(batches).to(ctx.device, non_blocking=True))).backward()
        return report(ctx, weights_of(module))

    # After the first step DistributedDataParallel makes its buckets anew, and NCCL holds the old ones for a while: as
    # long as both are there, the peak is no step's own.
    for _ in range(BATCHES):  # all, so that the first is next again
        step()
    await_watchdog(ctx)
    return step


def staged_replicas(ctx: Context, *, sizes: Sizes, seed: int) -> Step[Output]:
    """Each rank's batch is copied while the step before computes; one all_reduce of all gradients follows backward."""
    module = perceptron(sizes, seed, ctx.device)
    parameters = list(module.parameters())
    flat = torch.zeros(sum(value.numel() for value in parameters), dtype=sizes.dtype, device=ctx.device)
    # Gradients are views of one tensor: nothing is copied before or after the all_reduce.
    views = flat.split([value.numel() for value in parameters])
    for parameter, view in zip(parameters, views, strict=True):
        parameter.grad = view.view_as(parameter)
    coming = staged(ctx, sizes)

    def step() -> Output:
        flat.zero_()
        loss_of_rows(module(next(coming))).backward()
        averaged(ctx, flat)
        return report(ctx, weights_of(module))

    return step


def averaged(ctx: Context, flat: torch.Tensor) -> None:
    """The mean over all ranks, in place."""
    if ctx.device.type == "cuda":
        dist.all_reduce(flat, dist.ReduceOp.AVG)
    else:  # gloo has no means
        dist.all_reduce(flat)
        flat /= ctx.world_size


def pinned_batches(ctx: Context, sizes: Sizes) -> list[torch.Tensor]:
    """The rank's batches, pinned if it has a GPU."""
    batches = []
    for number in range(BATCHES):
        rows = rows_of(ctx, sizes, ctx.rank, number)
        batches.append(torch.empty_like(rows, device="cpu", pin_memory=rows.is_cuda).copy_(rows))
    return batches


def staged(ctx: Context, sizes: Sizes) -> Iterator[torch.Tensor]:
    """The rank's batches on its device; the next one is on its way while the caller uses the one it got."""
    batches = pinned_batches(ctx, sizes)
    side = torch.cuda.Stream() if ctx.device.type == "cuda" else None
    places = [batches[0].to(ctx.device, copy=True) for _ in range(2)]
    for number in itertools.count():
        if side is not None:
            now = torch.cuda.current_stream()
            now.wait_stream(side)  # this batch has come
            side.wait_stream(now)  # the step that used the other place is over
        with torch.cuda.stream(side):  # of None: the current one
            places[(number + 1) % 2].copy_(batches[(number + 1) % BATCHES], non_blocking=True)
        yield places[number % 2]


WAYS: Mapping[str, Callable[..., Step[Output]]] = {
    "DataParallel": data_parallel,
    "DDP": distributed_data_parallel,
    "staged replicas": staged_replicas,
}


def train(ctx: Context, *, way: str, sizes: Sizes, seed: int) -> Step[Output]:
    """The step of a way by its name."""
    return WAYS[way](ctx, sizes=sizes, seed=seed)
