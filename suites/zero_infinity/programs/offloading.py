"""Training with parameters and optimizer state on the host or on disk, a shard on each of R ranks.

After ZeRO-Infinity (arXiv:2104.07857, section 5): what trains on the device is gathered from the ranks' shards for a
step, gradients are scattered, and the optimizer updates each shard where it lives. PyTorch has no such engine; it has
the parts: tensors that are memory-mapped files, optimizers that update them in place, and the collectives. Simpler than
the paper's: all layers are gathered before the step, not each before its turn, and nothing is prefetched.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.func import functional_call

from pytest_gpuperf import Context
from suites.shared.memory import LiveBytes
from suites.shared.problems import Network, Problem, optimizer_for, set_rate
from suites.shared.step import Step, Tensors
from suites.shared.training import Packed, all_steps, batches_on_device

Home = Callable[[str, int, torch.dtype], torch.Tensor]
"""Called with a name, a number of elements and a dtype: zeros, on the CPU, that live there."""

STATE = {"sgd": ("momentum_buffer",), "adam": ("exp_avg", "exp_avg_sq")}
"""What the optimizers keep for each element of a parameter."""
COUNT = "step"
"""Besides, Adam counts the steps of each parameter."""
COUNT_DTYPE = torch.float32

LATE = 0.3  # seconds; gloo's threads held what they had gathered for up to 4 ms more, on cores that were busy

Bytes = dict[str, int]
"""By kind of device; where ranks train on CPUs, what the device and the host hold is one number."""


def host(name: str, numel: int, dtype: torch.dtype) -> torch.Tensor:
    """The host's memory."""
    return torch.zeros(numel, dtype=dtype)


def disk(folder: Path) -> Home:
    """Files of this folder, each mapped into memory: what is written to the tensor is written to the file."""

    def mapped(name: str, numel: int, dtype: torch.dtype) -> torch.Tensor:
        # shared: the file is made, of zeros, and the tensor's changes reach it.
        return torch.from_file(str(folder / name), shared=True, size=numel, dtype=dtype)

    return mapped


@contextlib.contextmanager
def rank_folder(ctx: Context, folder: Path) -> Iterator[Path]:
    """A folder for this rank's files below a given one; it is gone after the block, also when that raises."""
    own = folder / f"rank{ctx.rank}"
    own.mkdir()
    try:
        yield own
    finally:
        for path in own.iterdir():
            path.unlink()  # a tensor that is still mapped keeps its pages until it goes, and no name
        own.rmdir()


@dataclass(frozen=True, slots=True)
class Shard:
    """What a rank keeps of one parameter: a slice of it, flat and padded to the size of the other ranks' slices."""

    values: torch.Tensor
    state: Tensors
    whole: torch.Size
    """The shape of the whole parameter."""

    @property
    def nbytes(self) -> int:
        """Bytes of the values and the optimizer's state."""
        return self.values.nbytes + sum(value.nbytes for value in self.state.values())


def shard_size(numel: int, degree: int) -> int:
    """Elements of each rank's slice of so many."""
    return -(-numel // degree)


def shards_at(ctx: Context, problem: Problem, home: Home) -> dict[str, Shard]:
    """This rank's shards of the parameters, and the optimizer's state for them, as they are at home there."""
    shards = {}
    for name, value in problem.parameters().items():
        size = shard_size(value.numel(), ctx.world_size)
        state = {key: home(f"{name}.{key}", size, value.dtype) for key in STATE[problem.optimizer]}
        if problem.optimizer == "adam":
            state[COUNT] = home(f"{name}.{COUNT}", 1, COUNT_DTYPE).view(())
        shards[name] = Shard(home(name, size, value.dtype), state, value.shape)
    return shards


def shards_of(ctx: Context, problem: Problem, home: Home) -> dict[str, Shard]:
    """This rank's shards and state, with the values that the problem begins with; ``home`` is new."""
    shards = shards_at(ctx, problem, home)
    for name, value in problem.parameters().items():
        values = shards[name].values
        mine = value.flatten()[ctx.rank * values.numel() : (ctx.rank + 1) * values.numel()]
        values[: mine.numel()] = mine
    return shards


def gather(ctx: Context, shard: Shard) -> torch.Tensor:
    """The whole parameter, on the device."""
    local = shard.values.to(ctx.device)
    whole = torch.empty(local.numel() * ctx.world_size, dtype=local.dtype, device=ctx.device)
    dist.all_gather_into_tensor(whole, local)
    return whole[: math.prod(shard.whole)].view(shard.whole)


def scatter_mean(ctx: Context, gradient: torch.Tensor) -> torch.Tensor:
    """This rank's slice of the mean of the ranks' gradients, on the CPU."""
    size = shard_size(gradient.numel(), ctx.world_size)
    padded = gradient.new_zeros(size * ctx.world_size)
    padded[: gradient.numel()] = gradient.flatten()
    mine = gradient.new_empty(size)
    dist.reduce_scatter_tensor(mine, padded)
    return mine.div_(ctx.world_size).cpu()


def offloaded(
    ctx: Context,
    *,
    problem: Problem,
    home: Home = host,
    shards: dict[str, Shard] | None = None,
    done: int = 0,
    gather: Callable[[Context, Shard], torch.Tensor] = gather,
    scatter: Callable[[Context, torch.Tensor], torch.Tensor] = scatter_mean,
    optimizer: Callable[[Problem, list[torch.Tensor]], torch.optim.Optimizer] = optimizer_for,
) -> Step[Tensors]:
    """A step whose parameters and optimizer state live at ``home``.

    It returns the output, the input's gradient, and of all parameters this rank's slice of the gradient and, after the
    optimizer's step, of the values.

    Args:
        ctx: the rank's context.
        problem: what is trained.
        home: where this rank's shards live.
        shards: those, if the caller has made them.
        done: how many steps were taken before; the batches of the next ones follow.
        gather: gives this rank a whole parameter, on the device.
        scatter: gives this rank its slice of the mean gradient.
        optimizer: makes the optimizer of the shards' values; it has to keep the state that it is given in place.
    """
    owned = shards_of(ctx, problem, home) if shards is None else shards
    network = Network({name: value.to("meta") for name, value in problem.parameters().items()})
    update = optimizer(problem, [shard.values for shard in owned.values()])
    for shard in owned.values():
        # The state is the shard's own, in place of the one that the optimizer would make in the host's memory.
        update.state[shard.values] = dict(shard.state)
    coming = itertools.islice(enumerate(itertools.cycle(batches_on_device(ctx, problem))), done, None)

    def step() -> Tensors:
        number, batch = next(coming)
        x, grad = (tensor.flatten(0, 1) for tensor in batch)
        x.requires_grad_()
        parameters = {name: gather(ctx, shard).requires_grad_() for name, shard in owned.items()}
        output = functional_call(network, parameters, (x,))
        x_grad, *gradients = torch.autograd.grad(output, [x, *parameters.values()], grad)
        results = {"output": output.detach(), "input gradient": x_grad}
        for (name, shard), gradient in zip(owned.items(), gradients, strict=True):
            shard.values.grad = scatter(ctx, gradient)
            results[f"{name} gradient"] = shard.values.grad.clone()
        set_rate(update, problem.rate(number))
        update.step()
        update.zero_grad()
        return results | {name: shard.values.clone() for name, shard in owned.items()}

    return step


@dataclass(frozen=True, slots=True)
class Account:
    """A rank's results, and where its bytes were after the last step."""

    results: Packed
    files: Packed
    """The content of each file, read anew, by its name."""
    on_disk: int
    """Bytes of the files."""
    in_memory: int
    """Bytes of the host's memory that shards and optimizer hold."""


def account(
    ctx: Context,
    *,
    problem: Problem,
    folder: Path | None,
    stop_after: int | None = None,
    raising: bool = False,
    **kwargs: Any,
) -> Account:
    """Runs all steps of the problem, at home in files of this folder or, without one, in memory.

    Args:
        ctx: the rank's context.
        problem: what is trained.
        folder: for the files.
        stop_after: after so many steps nothing is left but the files, and training goes on from these.
        raising: whether it fails in the end.
        kwargs: for ``offloaded``.

    Raises:
        RuntimeError: if asked for by ``raising``, after the last step.
    """
    with contextlib.nullcontext() if folder is None else rank_folder(ctx, folder) as own:
        home = disk(own) if own is not None else host
        shards = shards_of(ctx, problem, home)
        optimizers: list[torch.optim.Optimizer] = []
        make = kwargs.pop("optimizer", optimizer_for)

        def kept(problem: Problem, parameters: list[torch.Tensor]) -> torch.optim.Optimizer:
            optimizers.append(make(problem, parameters))
            return optimizers[0]

        before: Tensors = {}
        if stop_after is not None:
            step = offloaded(ctx, problem=problem, shards=shards, optimizer=kept, **kwargs)
            before = all_steps(step, stop_after)
            optimizers.clear()
            shards = shards_at(ctx, problem, home)
        done = stop_after or 0
        step = offloaded(ctx, problem=problem, shards=shards, done=done, optimizer=kept, **kwargs)
        results = Packed.of(before | all_steps(step, problem.steps - done, first=done + 1))
        if raising:
            raise RuntimeError(f"rank {ctx.rank} fails with its files open")
        paths = sorted(own.iterdir()) if own is not None else []
        files = Packed.of({path.name: _content(path, problem.dtype) for path in paths})
        tensors = [tensor for shard in shards.values() for tensor in (shard.values, *shard.state.values())]
        for state in optimizers[0].state.values():
            tensors += state.values()
        unmapped = {tensor.data_ptr(): tensor.nbytes for tensor in tensors if not _is_mapped(tensor, own)}
        return Account(results, files, sum(path.stat().st_size for path in paths), sum(unmapped.values()))


def _content(path: Path, dtype: torch.dtype) -> torch.Tensor:
    kind = COUNT_DTYPE if path.name.endswith(f".{COUNT}") else dtype
    return torch.frombuffer(bytearray(path.read_bytes()), dtype=kind)


def _is_mapped(tensor: torch.Tensor, folder: Path | None) -> bool:
    """Whether the kernel says that the tensor's memory is a file of the folder, shared with it."""
    if folder is None:
        return False
    for line in Path("/proc/self/maps").read_text().splitlines():
        addresses, permissions, *_, path = line.split(maxsplit=5)
        start, end = (int(address, 16) for address in addresses.split("-"))
        if start <= tensor.data_ptr() < end:
            return permissions.endswith("s") and Path(path).parent == folder
    return False


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of the tensors that are alive, those of mapped files included."""

    before: Bytes
    """The first step."""
    after: list[Bytes]
    """Each step, when the caller has let go of its results, and the backend of what it moved."""
    peak: Bytes
    """The most during all steps, results included."""


def memory(ctx: Context, *, problem: Problem, folder: Path | None, **kwargs: Any) -> Memory:
    """What all steps of the problem take, at home in files of this folder or, without one, in memory."""
    devices = {ctx.device, torch.device("cpu")}
    live = {device.type: LiveBytes(device) for device in devices}
    with contextlib.ExitStack() as stack:
        own = None if folder is None else stack.enter_context(rank_folder(ctx, folder))
        for mode in live.values():
            stack.enter_context(mode)

        def alive() -> Bytes:
            return {kind: mode.live() for kind, mode in live.items()}

        def alive_after_a_step() -> Bytes:
            until = time.monotonic() + LATE
            while (now := alive()) != before and all(of_step == before for of_step in after):
                if time.monotonic() > until:
                    break
                time.sleep(1e-3)  # no event tells that a thread of gloo's has let go
            return now

        step = offloaded(ctx, problem=problem, home=host if own is None else disk(own), **kwargs)
        before: Bytes = alive()
        after: list[Bytes] = []
        for mode in live.values():
            mode.peak = 0  # building draws the whole parameters
        for _ in range(problem.steps):
            step()
            after.append(alive_after_a_step())
        return Memory(before, after, {kind: mode.peak for kind, mode in live.items()})
