"""A sequence-parallel MLP as it is, compiled, and compiled so that products and collectives become one operation.

R ranks, T tokens, W features, F hidden features. Each rank has T/R tokens. The column-parallel layer gathers all of
them, and the row-parallel one sums what the ranks have and keeps T/R tokens (Korthikanti et al. 2022, arXiv:2205.05198,
section 4.2.2). torch's pass ``micro_pipeline_tp`` turns a product with its collective into one operation, which
multiplies a shard while the next one is on its way.
"""

from __future__ import annotations

import time
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

from pytest_gpuperf import Context
from suites.shared.inputs import Given
from suites.shared.peer_memory import prepare_workspace
from suites.shared.sharding import local_tensor, parallelized, parameters_on_device, shard
from suites.shared.step import Step, Tensors, excerpt, gradient_of
from suites.tensor_parallel.programs.linear_layers import Mlp, two_layers
from suites.tensor_parallel.programs.steps import layer_steps

EAGER, COMPILED, MICRO_PIPELINED = WAYS = ("eager", "compiled", "micro-pipelined")

IN_TURN = ("_c10d_functional.all_gather_into_tensor.default", "_c10d_functional.reduce_scatter_tensor.default")
"""What the graphs of forward and backward call, beside their products."""
FUSED = ("symm_mem.fused_all_gather_matmul.default", "symm_mem.fused_matmul_reduce_scatter.default")
"""What the pass makes of each of them and its product."""
CALLED = {COMPILED: IN_TURN, MICRO_PIPELINED: FUSED}
DIRECTIONS = ("forward", "backward")


@dataclass(eq=False)
class Compilation:
    """What the compiler has made of a module; no tensor to those who compare what steps return."""

    way: str
    graphs: list[Counter[str]] = field(default_factory=list)
    """How often each graph calls each of these operations, forward first; none of a module that is not compiled."""

    def __call__(self, graph: torch.fx.Graph) -> None:
        """Notes down a graph as it is after torch's own passes."""
        called = Counter(str(node.target) for node in graph.nodes if node.op == "call_function")
        self.graphs.append(Counter({name: called[name] for name in (*IN_TURN, *FUSED) if called[name]}))

    def assert_made(self, where: str) -> None:
        """The graphs call what is meant: collectives in turn with products, or operations that are both.

        Raises:
            AssertionError: they do not; names the graph and what it calls.
        """
        directions = () if self.way == EAGER else DIRECTIONS
        assert len(self.graphs) == len(directions), (
            f"{where}: the compiler has made {len(self.graphs)} graphs of the {self.way} MLP, not {len(directions)}: "
            "one of forward and one of backward, if it is compiled at all"
        )
        for direction, calls in zip(directions, self.graphs, strict=True):
            expected = CALLED[self.way]
            assert set(calls) == set(expected), (
                f"{where}: torch {'did not fuse' if self.way == MICRO_PIPELINED else 'fused'} the {direction} graph of "
                f"the {self.way} MLP, which calls "
                f"{', '.join(f'{name} ({count} times)' for name, count in sorted(calls.items())) or 'no collective'}: "
                f"expected {' and '.join(expected)} alone; torch fuses a collective with a plain product (aten.mm) "
                "beside it if the option is set and the group has symmetric memory"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class MlpShape:
    """The sizes of an MLP and of its input."""

    tokens: int
    width: int
    hidden: int
    dtype: torch.dtype
    seed: int = 1

    @property
    def flop(self) -> float:
        """Floating-point operations of forward and backward, of all ranks together: 2 a weight and token, then 4."""
        return 6.0 * self.tokens * 2 * self.width * self.hidden


def drawn(ctx: Context, shape: MlpShape) -> Given:
    """Weights, input and gradient of the output, alike on all ranks; what comes of them is near 1, or a power of T."""
    generator = torch.Generator(ctx.device).manual_seed(shape.seed)

    def normal(rows: int, columns: int, variance: float) -> torch.Tensor:
        numbers = torch.randn(rows, columns, generator=generator, dtype=shape.dtype, device=ctx.device)
        return numbers.mul_(variance**0.5)

    up = normal(shape.hidden, shape.width, 1 / shape.width)
    down = normal(shape.width, shape.hidden, 2 / shape.hidden)  # ReLU keeps half
    x, grad = (normal(shape.tokens, shape.width, 1.0) for _ in range(2))
    return Given({"0.weight": up, "2.weight": down}, x, grad)


def split(ctx: Context, parameters: Tensors) -> Mlp:
    """The MLP, of which each rank gets and gives its own tokens."""
    plan = {"0": ColwiseParallel(input_layouts=Shard(0)), "2": RowwiseParallel(output_layouts=Shard(0))}
    return parallelized(ctx, two_layers(parameters_on_device(ctx, parameters)), plan)


def compile_in_place(ctx: Context, module: nn.Module, way: str) -> Compilation:
    """Has the module compiled when it is called; parameters keep their names. Nothing becomes of an eager one."""
    made = Compilation(way)
    if way == EAGER:
        return made
    fuse = way == MICRO_PIPELINED
    if fuse:
        enable_symmetric_memory(ctx)
    # As options, and not set in torch's configuration: that one belongs to a thread, and backward on a GPU is compiled
    # on autograd's own. A pass of ours keeps the graph out of torch's caches, which do not know which groups have
    # symmetric memory: a graph that was compiled before would come back as it was, with its collectives in turn.
    module.compile(
        fullgraph=True, dynamic=False, options={"_micro_pipeline_tp": fuse, "post_grad_custom_post_pass": made}
    )
    return made


def enable_symmetric_memory(ctx: Context) -> None:
    """Lets the pass use symmetric memory in the group of the ranks' mesh."""
    # Here, since the module is alpha, and nothing else should depend on it.
    import torch.distributed._symmetric_memory as symm_mem

    with warnings.catch_warnings():
        # "There is no need to call this function anymore": the operations need it no more, and the pass still asks.
        warnings.simplefilter("ignore", FutureWarning)
        symm_mem.enable_symm_mem_for_group(ctx.mesh((ctx.world_size,)).get_group().group_name)


def make_ready(ctx: Context, module: Mlp, x: torch.Tensor, way: str) -> None:
    """Loads the kernels of the products that are made of one shard, and makes the workspace that fused ones share.

    Else a rank would do so while another waits for it: see fused_all_gather_matmul in collective_matmul.py.

    Args:
        ctx: the rank.
        module: the split MLP.
        x: what a rank gives to it.
        way: how it is compiled.
    """
    if way == MICRO_PIPELINED:
        prepare_workspace(ctx, 2 * x.nbytes)  # x, and the output, which is as large, in two halves
    up, down = (local_tensor(weight) for weight in module.parameters())
    hidden = torch.mm(x, up.t())
    torch.mm(hidden, down.t())
    torch.mm(torch.mm(x, down), up)  # x in the place of the output's gradient, which has its shape


def mlp(ctx: Context, *, given: Sequence[Given], way: str) -> tuple[Step[Tensors], Compilation]:
    """Steps with an input, an output gradient and weights of their own, and what the compiler has made of them."""
    module = split(ctx, given[0].parameters)
    make_ready(ctx, module, shard(given[0].x.to(ctx.device), ctx.world_size, 0)[ctx.rank], way)
    made = compile_in_place(ctx, module, way)
    return layer_steps(ctx, module, given, x_sharded=True, grad_sharded=True, dim=0), made


def report(output: torch.Tensor, x: torch.Tensor, module: nn.Module) -> Tensors:
    """An excerpt of this rank's output and gradients."""
    leaves = {"input": x, **dict(module.named_parameters())}
    results = {"output": output.detach()} | {f"{name} gradient": gradient_of(leaf) for name, leaf in leaves.items()}
    return excerpt({name: value.to_local() if isinstance(value, DTensor) else value for name, value in results.items()})


def train(ctx: Context, *, shape: MlpShape, way: str) -> Step[tuple[Tensors, Compilation]]:
    """Forward and backward, for timing; a step returns an excerpt of this rank's output and gradients.

    The preparation takes a step, in which the module is compiled: ``compiling`` tells how long that took.

    Raises:
        ValueError: The ranks do not divide tokens or hidden features.
    """
    for what, number in {"tokens": shape.tokens, "hidden features": shape.hidden}.items():
        if number % ctx.world_size:
            raise ValueError(f"{number} {what} cannot be split over {ctx.world_size} ranks: choose a multiple")
    whole = drawn(ctx, shape)
    x, grad = (shard(tensor, ctx.world_size, 0)[ctx.rank].clone() for tensor in (whole.x, whole.grad))
    module = split(ctx, whole.parameters)
    del whole
    make_ready(ctx, module, x, way)
    made = compile_in_place(ctx, module, way)
    x.requires_grad_()

    def step() -> tuple[Tensors, Compilation]:
        x.grad = None
        module.zero_grad()
        output = module(x)
        output.backward(grad)
        return report(output, x, module), made

    _settle(ctx)  # what was prepared is not the step's
    began = time.perf_counter()
    step()
    _settle(ctx)
    ctx.store.set(_key(ctx, way), str(time.perf_counter() - began))
    return step


def compiling(ctx: Context, *, way: str) -> float:
    """Seconds of this rank's first step when it was prepared last, compiling included."""
    return float(ctx.store.get(_key(ctx, way)))


def _settle(ctx: Context) -> None:
    """Waits for what the device has to do."""
    if ctx.device.type == "cuda":
        torch.cuda.synchronize()


def _key(ctx: Context, way: str) -> str:
    return f"first step of the {way} MLP on rank {ctx.rank}"
