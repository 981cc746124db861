"""DistributedDataParallel's arguments one by one: which parameters are reduced when, in which group, and buffers.

Each setting leaves the training's numbers as they are. The step is that of ``suites.shared.training.problem_step``.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms import Join
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from pytest_gpuperf import Context
from suites.shared.problems import Network, Problem, optimizer_for
from suites.shared.sharding import parameters_on_device
from suites.shared.step import Step, Tensors, gradient_of
from suites.shared.training import batches_on_device, problem_step

Wrap = Callable[[Context, Network], DistributedDataParallel]


def _in_a_group(ctx: Context, network: Network) -> DistributedDataParallel:
    return DistributedDataParallel(network, process_group=dist.new_group())


def _on_a_mesh(ctx: Context, network: Network) -> DistributedDataParallel:
    return DistributedDataParallel(network, device_mesh=ctx.mesh((ctx.world_size,)))


def _on_a_device(ctx: Context, network: Network) -> DistributedDataParallel:
    """The rank's GPU is named; without GPUs there is none to name."""
    device = [ctx.device] if ctx.device.type == "cuda" else None
    return DistributedDataParallel(network, device_ids=device, output_device=None if device is None else ctx.device)


def _unused_not_reduced(ctx: Context, network: Network) -> DistributedDataParallel:
    """A parameter that no rank uses keeps no gradient."""
    network.register_parameter("unused", nn.Parameter(torch.ones(2, dtype=torch.float64, device=ctx.device)))
    return DistributedDataParallel(network, find_unused_parameters=True, skip_all_reduce_unused_params=True)


class _Parts(Network):
    """Returns what it would add up: outputs of the shortcut, unless it is left out, and of the hidden layers."""

    def forward(self, x: torch.Tensor) -> Any:
        """Both outputs, nested as ``nest`` says."""
        assert self.first is not None
        assert self.second is not None
        short = None if self._skip else self.shortcut(x)
        return self.nest(short, self.second(torch.relu(self.first(x))))

    nest: Callable[[torch.Tensor | None, torch.Tensor], Any]


@dataclass
class _Outputs:
    """What a model returns."""

    short: torch.Tensor | None
    others: dict[str, torch.Tensor]


def _nested(nest: Callable[[torch.Tensor | None, torch.Tensor], Any], take: Callable[[Any], list[Any]]) -> Wrap:
    """Wraps a network of which the second rank leaves out the shortcut, and whose outputs are nested in some way."""

    def wrap(ctx: Context, network: Network) -> DistributedDataParallel:
        network.__class__ = _Parts
        parts = cast("_Parts", network)
        parts.nest, parts._skip = nest, ctx.rank == 1
        module = DistributedDataParallel(parts, find_unused_parameters=True)
        module.register_forward_hook(
            lambda module, _, output: torch.stack([part for part in take(output) if part is not None]).sum(0)
        )
        return module

    return wrap


class _Named(NamedTuple):
    """What a model returns, beside what it only shows."""

    short: torch.Tensor | None
    seen: torch.Tensor
    long: list[torch.Tensor]
    rows: int


def _taken(output: _Named) -> list[torch.Tensor | None]:
    """Looks at what the model shows: it has no gradient, as before it was wrapped."""
    assert not output.seen.requires_grad
    assert torch.equal(output.seen, output.long[0])
    assert output.rows == len(output.seen)
    return [output.short, *output.long]


def _copied_with_a_static_graph(ctx: Context, network: Network) -> DistributedDataParallel:
    """A copy, which has to know as well that a parameter has no gradient: nobody looks for such ones."""
    network.register_parameter("unused", nn.Parameter(torch.ones(2, dtype=torch.float64, device=ctx.device)))
    return copy.deepcopy(DistributedDataParallel(network, static_graph=True))


def _copied_at_once(ctx: Context, network: Network) -> DistributedDataParallel:
    return DistributedDataParallel(network, batched_grad_copy=True)


@dataclass(frozen=True, slots=True)
class Setting:
    """How a network is wrapped."""

    wrap: Wrap
    skips: bool = False
    """Whether the second rank does not use the shortcut."""
    microbatches: int = 2
    """Their number in a step; the first backward of a static graph has to reduce, or torch 2.13 fails."""
    needs: str = ""
    """The argument that older versions of torch do not have."""

    @property
    def lacking(self) -> bool:
        """Whether the installed torch has no such argument."""
        return bool(self.needs) and self.needs not in inspect.signature(DistributedDataParallel).parameters


SETTINGS: Mapping[str, Setting] = {
    "a group of its own": Setting(_in_a_group),
    "a mesh": Setting(_on_a_mesh),
    "a device": Setting(_on_a_device),
    "unused parameters left out": Setting(_unused_not_reduced, needs="skip_all_reduce_unused_params"),
    "gradients copied at once": Setting(_copied_at_once, needs="batched_grad_copy"),
    "a copy with a static graph": Setting(_copied_with_a_static_graph, microbatches=1),
    "outputs with names": Setting(
        _nested(lambda short, long: _Named(short, long.detach(), [long], len(long)), _taken), skips=True
    ),
    "outputs in a dict": Setting(
        _nested(
            lambda short, long: {"short": short, "long": [long]}, lambda output: [output["short"], *output["long"]]
        ),
        skips=True,
    ),
    "outputs in a dataclass": Setting(
        _nested(
            lambda short, long: _Outputs(short, {"long": long}), lambda output: [output.short, output.others["long"]]
        ),
        skips=True,
    ),
}


def configured(ctx: Context, *, problem: Problem, setting: str) -> Step[Tensors]:
    """Training of the problem's network, which is wrapped by a setting; ranks begin with parameters of their own."""
    network = Network(parameters_on_device(ctx, problem.parameters(ctx.rank)))
    module = SETTINGS[setting].wrap(ctx, network)
    optimizer = optimizer_for(problem, module.parameters())
    return problem_step(problem, module, optimizer, batches_on_device(ctx, problem), module.no_sync)


class _WithParameters(nn.Module):
    """A module with the parameters that it has now: torch's wrapper hides split ones once a forward has begun."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.wrapped = module
        self.held = {name.removeprefix("module."): value for name, value in module.named_parameters()}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.wrapped(x)
        return output

    def named_parameters(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Parameter]]:
        yield from self.held.items()


def of_split_layers(ctx: Context, *, problem: Problem) -> Step[Tensors]:
    """Training of a network whose hidden layers are split over pairs of ranks; each pair is a replica.

    ``problem`` is one of half as many ranks, as both ranks of a pair are given the same.
    """
    mesh = ctx.mesh((ctx.world_size // 2, 2), ("replica", "split"))
    replica = mesh["replica"].get_local_rank()
    network = Network(parameters_on_device(ctx, problem.parameters(replica)))
    for name in ("first", "second"):
        weight, bias = (problem.parameters(replica)[f"{name}.{part}"] for part in ("weight", "bias"))
        layer = nn.Linear(weight.shape[1], weight.shape[0], dtype=weight.dtype, device=ctx.device)
        layer.load_state_dict({"weight": weight, "bias": bias})
        network.add_module(name, layer)
    plan: dict[str, ParallelStyle] = {"first": ColwiseParallel(), "second": RowwiseParallel()}
    parallelize_module(network, mesh["split"], plan, src_data_rank=None)
    module = DistributedDataParallel(network, device_mesh=mesh["replica"])
    batches = [(x.to(ctx.device), grad.to(ctx.device)) for x, grad in problem.batches(replica)]
    held = _WithParameters(module)
    return problem_step(problem, held, optimizer_for(problem, held.held.values()), batches, module.no_sync)


class Nested(nn.Module):
    """Layers of batch norm at two depths; the inner one is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3, eps=0.25, momentum=None)
        self.inner = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm2d(3, affine=False, track_running_stats=False)).eval()


def converted(ctx: Context) -> dict[str, tuple[list[int], float, float | None, bool, bool]]:
    """Return, by name, the ranks that each converted layer of batch norm looks at, and its settings.

    torch computes with such layers on GPUs only.
    """
    group = ctx.mesh((ctx.world_size // 2, 2), ("outer", "inner")).get_group("inner")
    module = nn.SyncBatchNorm.convert_sync_batchnorm(Nested(), group)
    return {
        name: (
            dist.get_process_group_ranks(layer.process_group or dist.group.WORLD),
            layer.eps,
            layer.momentum,
            layer.affine,
            layer.training,
        )
        for name, layer in module.named_modules()
        if isinstance(layer, nn.SyncBatchNorm)
    }


class _Counting(nn.Module):
    """A layer with a buffer that counts calls, from another number on each rank."""

    def __init__(self, start: int, replaced: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1, dtype=torch.float64))
        self._replaced = replaced
        self.register_buffer("calls", torch.tensor(float(start), dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls: torch.Tensor
        self.calls = self.calls + 1 if self._replaced else self.calls.add_(1)
        return x * self.weight


def buffers(ctx: Context, *, argument: str, sync: bool, steps: int, replaced: bool, first: int = 0) -> list[float]:
    """The buffer after each step, in which rank r begins with 10 r and adds 1 + r of its own after the forward.

    The last step but one has a forward without a reduction before it, which is no reason to send buffers.

    Args:
        ctx: the rank's context.
        argument: which says whether buffers are sent: ``forward_sync_buffers``, or ``broadcast_buffers`` of old.
        sync: its value.
        steps: of the training.
        replaced: whether each forward makes a new tensor of the buffer, and doesn't write into the old one.
        first: of the ranks that train, in a group of their own in which it is rank 0; those before it do nothing.
    """
    group = dist.new_group(list(range(first, ctx.world_size))) if first else None
    rank = ctx.rank - first
    if rank < 0:
        return []
    layer = _Counting(10 * rank, replaced).to(ctx.device)
    if argument == "forward_sync_buffers":
        module = DistributedDataParallel(layer, process_group=group, forward_sync_buffers=sync)
    else:
        module = DistributedDataParallel(layer, process_group=group, broadcast_buffers=sync)
    counts = []
    x = torch.ones(1, dtype=torch.float64, device=ctx.device)
    for number in range(steps):
        if number == steps - 2:
            with module.no_sync():
                module(x)
        module(x).sum().backward()
        layer.calls += rank
        counts.append(float(layer.calls))
    return counts


def apart_at_first(ctx: Context, *, init_sync: bool) -> list[float]:
    """A parameter and a buffer that differ by rank, once they are wrapped, and the parameter's gradient of a step.

    Rank r begins with 1 + r and 10 r.
    """
    layer = _Counting(10 * ctx.rank, replaced=False).to(ctx.device)
    with torch.no_grad():
        layer.weight.fill_(1 + ctx.rank)
    module = DistributedDataParallel(layer, init_sync=init_sync)
    begun = [float(layer.weight), float(layer.calls)]
    module(torch.full((1,), 1.0 + ctx.rank, dtype=torch.float64, device=ctx.device)).square().sum().backward()
    return [*begun, float(gradient_of(layer.weight))]


def kept_local(ctx: Context) -> list[float]:
    """Returns a weight's gradient after each of two backwards that are not reduced, and after one that is.

    Before the second one, a context within the one that keeps gradients local has ended. Rank r's input is 1 + r.
    """
    module = DistributedDataParallel(_Counting(0, replaced=False).to(ctx.device))
    x = torch.full((1,), 1.0 + ctx.rank, dtype=torch.float64, device=ctx.device)
    found = []

    def backward() -> None:
        module(x).sum().backward()
        found.append(float(gradient_of(module.module.weight)))

    with module.no_sync():
        with module.no_sync():
            backward()
        backward()
    backward()
    return found


def stopped(ctx: Context, *, problem: Problem, lengths: list[int], enable: bool, throw: bool, method: bool) -> int:
    """How many steps a rank takes before a rank that has no more batches stops all.

    Args:
        ctx: the rank's context.
        problem: what is trained.
        lengths: how many steps each rank has batches for.
        enable: whether ranks tell each other whether they have a batch.
        throw: whether the first that has none stops all.
        method: whether the module joins by its own method.
    """
    module = DistributedDataParallel(Network(parameters_on_device(ctx, problem.parameters())))
    optimizer = optimizer_for(problem, module.parameters())
    step = problem_step(problem, module, optimizer, batches_on_device(ctx, problem))
    taken = 0
    try:
        with (
            module.join(enable=enable, throw_on_early_termination=throw)
            if method
            else Join([module], enable=enable, throw_on_early_termination=throw)
        ):
            for _ in range(lengths[ctx.rank]):
                step()
                taken += 1
    except RuntimeError as error:
        if "exhausted" not in str(error):
            raise
    return taken
