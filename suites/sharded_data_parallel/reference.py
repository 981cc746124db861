"""What ranks that shard a model returned, hold and sent, beside the whole model and ZeRO's formulas."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from suites.sharded_data_parallel.programs.mixed_precision import Precision, add_to_results
from suites.sharded_data_parallel.programs.racing import Sharding
from suites.sharded_data_parallel.programs.stages import Account, Accumulation
from suites.shared.comparison import Results
from suites.shared.llama import Config
from suites.shared.llm import Workload
from suites.shared.problems import Problem
from suites.shared.references import assert_trained, whole_batch
from suites.shared.sharding import shard
from suites.shared.step import Tensors

STATES = {"sgd": 1, "adam": 2}
"""How many numbers the optimizer keeps for each of a parameter."""


def expected_shards(problem: Problem, whole: Results, degree: int, precision: Precision | None = None) -> list[Tensors]:
    """What each rank holds of these results where parameters are sharded over ``degree`` consecutive ranks."""
    results: list[Tensors] = []
    for rank, of_rank in enumerate(whole):
        result = {}
        for name, value in of_rank.items():
            if ".weight" in name or ".bias" in name:
                value = shard(value, degree, 0)[rank % degree]
            elif name.endswith("output") and precision is not None:
                value = value.to(precision.gathered)
            result[name] = value
        results.append(result)
    return results


def padded(problem: Problem, degree: int, layers: Iterable[str] | None = None) -> int:
    """Elements of a rank's shards, each as large as the largest: FSDP2 shards by rows and pads to equal ones.

    Args:
        problem: whose parameters they are.
        degree: how many ranks they are sharded over.
        layers: only the parameters of these; of all by default.
    """
    return sum(
        -(-len(value) // degree) * value[0].numel()
        for name, value in problem.parameters().items()
        if layers is None or name.partition(".")[0] in layers
    )


def elements(problem: Problem) -> int:
    """Elements of all parameters."""
    return sum(value.numel() for value in problem.parameters().values())


def assert_fully_sharded(
    accounts: Sequence[Account],
    problem: Problem,
    *,
    replicas: int = 1,
    precision: Precision | None = None,
    added: Tensors | None = None,
    reshard: bool,
    offload: bool = False,
    accumulation: Accumulation = "whole",
    mean: float = 0.0,
) -> None:
    """Training is exact; each rank has sent and holds what ZeRO-3 says, where it should.

    Args:
        accounts: of all ranks.
        problem: what was trained.
        replicas: of the shards.
        precision: of computation and reduction, the problem's dtype by default.
        added: fractions that the program's parameters had and the problem's have not.
        reshard: whether parameters were gathered anew for backward.
        offload: whether everything should wait on the CPU.
        accumulation: of the gradients of several microbatches.
        mean: how far the mean of the gradients may be off.
    """
    precision = precision or Precision(problem.dtype)
    degree = problem.world_size // replicas
    expected = whole_batch(problem)
    if added is not None:
        add_to_results(expected, added)
    sharded = expected_shards(problem, expected, degree, precision)
    assert_trained(problem, [account.results for account in accounts], sharded, mean=mean)

    shard_size = padded(problem, degree)
    gathers = problem.microbatches * (2 if reshard else 1)  # for forward, and anew for backward
    if accumulation == "gathered":
        gathers -= problem.microbatches - 1  # for the forward of all but the first
    traffic = {
        "all_gather": gathers * degree * shard_size * precision.gathered.itemsize,
        "reduce_scatter": degree * shard_size * precision.reduced.itemsize,
    }
    if replicas > 1:
        traffic["all_reduce"] = shard_size * precision.reduced.itemsize
    # Once in a step, unless earlier microbatches are reduced by themselves; their shards may wait for the replicas'.
    often = {"sharded": ("reduce_scatter",), "averaged": ("reduce_scatter", "all_reduce")}.get(accumulation, ())
    traffic |= {name: problem.microbatches * nbytes for name, nbytes in traffic.items() if name in often}
    between = shard_size * precision.dtype.itemsize
    if not reshard:
        between = degree * shard_size * precision.gathered.itemsize
    for rank, account in enumerate(accounts):
        own = {name.removeprefix("step 1, "): value.nbytes for name, value in sharded[rank].items()}
        exact = sum(own[name] for name in problem.parameters())
        # Gradients are views of what reduce-scatter has left, padding included; copies to the CPU need none.
        padded_gradients = shard_size * problem.dtype.itemsize
        least_gradients = exact if offload else padded_gradients
        bounds = {
            "between": (between, between),
            "parameters": (shard_size * problem.dtype.itemsize,) * 2,
            "gradients": (least_gradients, padded_gradients),
            "optimizer": (exact * STATES[problem.optimizer],) * 2,
        }
        home = "cpu" if offload else account.device
        devices = {name: home if name != "between" or reshard else account.device for name in bounds}
        if account.traffic is not None:
            assert account.traffic == traffic, f"rank {rank} sent {account.traffic}, not {traffic}"
        for name, (least, most) in bounds.items():
            got = account.memory[name]
            assert least <= got.nbytes <= most, f"rank {rank}, {name}: {got.nbytes} bytes, not {least} to {most}"
            assert got.devices == {devices[name]}, f"rank {rank}, {name}: on {set(got.devices)}, not {devices[name]}"


def assert_gathered(
    accounts: Sequence[Account],
    problem: Problem,
    gathered: Mapping[str, set[str]],
    precision: Precision | None = None,
) -> None:
    """While a layer runs, only these layers' parameters are gathered: of all others a rank holds its shard.

    Args:
        accounts: of all ranks.
        problem: what was trained.
        gathered: for each layer that runs, the layers that should be whole then.
        precision: of computation, the problem's dtype by default.
    """
    precision = precision or Precision(problem.dtype)
    degree = problem.world_size
    for running, whole in gathered.items():
        nbytes = degree * padded(problem, degree, whole) * precision.gathered.itemsize
        nbytes += padded(problem, degree, set(gathered) - whole) * precision.dtype.itemsize
        for rank, account in enumerate(accounts):
            got = account.memory[f"in {running}"].nbytes
            assert got == nbytes, f"rank {rank}, parameters in {running}: {got} bytes, not {nbytes}"


def numel(config: Config) -> int:
    """Elements of a Llama-shaped model's parameters: embedding, layers with two norms each, the last norm, head."""
    kv_dim = config.kv_heads * config.head_dim
    layer = 2 * config.dim**2 + 2 * config.dim * kv_dim + 3 * config.dim * config.hidden + 2 * config.dim
    return 2 * config.vocabulary * config.dim + config.layers * layer + config.dim


def state_bytes(way: Sharding, work: Workload, world_size: int) -> float:
    """Bytes of parameters, gradients and Adam's two moments on a rank, on average (ZeRO, arXiv 1910.02054, section 5).

    Everything has one dtype: of mixed precision the parameters', else that of computation.
    """
    dtype = work.parameters if way.mixed else work.compute
    shared = {"": 0, "state": 2, "all": 4}[way.sharded]
    return numel(work.config) * dtype.itemsize * (4 - shared + shared / world_size)


def bytes_sent(way: Sharding, work: Workload, world_size: int) -> float:
    """Bytes that a rank sends in a step (the same, section 7): gradients once or twice, and parameters.

    An all-reduce sends twice as much as a reduce-scatter. torch's ZeRO-1 has it too, and broadcasts parameters; ZeRO-3
    gathers them for forward, and anew for backward if they were resharded.
    """
    gradients, parameters = {"": (2, 0), "state": (2, 1), "all": (1, 2 if way.reshard else 1)}[way.sharded]
    reduced = work.parameters if way.mixed else work.compute
    each = gradients * reduced.itemsize + parameters * work.compute.itemsize
    return numel(work.config) * each * (world_size - 1) / world_size
