"""FSDP2 trains as one device does under each of its settings, exactly: three steps of two microbatches each."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy

from pytest_gpuperf import Ranks
from suites.sharded_data_parallel.programs.extended import ALL, configured, typed_together
from suites.sharded_data_parallel.programs.one_module import switched
from suites.sharded_data_parallel.programs.settings import frozen_later, reduced_apart, typed
from suites.sharded_data_parallel.programs.uncommon import inferred, replaced_while_gathered
from suites.shared.comparison import assert_each, assert_same
from suites.shared.inputs import integers
from suites.shared.problems import MAX_STEPS_IN, Network, Problem
from suites.shared.references import whole_batch
from suites.shared.sharding import shard
from suites.shared.step import Tensors
from suites.shared.strategies import seeds
from suites.shared.training import trajectory

SEEDS = pytest.mark.examples(0.04)
"""Numbers have little to do with settings: a few seeds."""


@pytest.mark.ranks(2)
@SEEDS
@pytest.mark.parametrize("setting", [name for name, setting in ALL.items() if setting.ranks == 2])
@given(seed=seeds)
def test_as_one_device(ranks: Ranks, setting: str, seed: int) -> None:
    assert_as_one_device(ranks, setting, seed)


@pytest.mark.ranks(4)
@SEEDS
@pytest.mark.parametrize(
    "setting",
    [
        "cut along the last dimension",
        "cut over half of the ranks after forward",
        "replicas by a hook",
        *(name for name, setting in ALL.items() if setting.ranks == 4),
    ],
)
@given(seed=seeds)
def test_parts_of_four_ranks(ranks: Ranks, setting: str, seed: int) -> None:
    """Two ranks have no half of which each has several, and no replicas of several shards."""
    assert_as_one_device(ranks, setting, seed)


def assert_as_one_device(ranks: Ranks, setting: str, seed: int) -> None:
    if ALL[setting].needs and not hasattr(FSDPModule, ALL[setting].needs):
        pytest.skip(f"torch {torch.__version__} has no FSDPModule.{ALL[setting].needs}")
    # Outputs that no number of ranks divides: a cut along the first dimension is uneven, along the last one even.
    dtype = ALL[setting].dtype
    problem = Problem(
        world_size=ranks.world_size,
        seed=seed,
        inputs=4,
        hidden=4,
        outputs=3,
        microbatches=2,
        steps=MAX_STEPS_IN[dtype],
        dtype=dtype,
    )
    got = ranks.run(trajectory, configured, problem=problem, setting=setting)
    assert_same([packed.unpacked() for packed in got], expected(problem, setting))


def expected(problem: Problem, setting: str) -> list[Tensors]:
    """What each rank holds of the whole training."""
    chosen = ALL[setting]
    skip = (problem.world_size - 1,) if chosen.skips else ()
    shapes = {name: value.dim() for name, value in problem.parameters().items()}
    results: list[Tensors] = []
    for rank, whole in enumerate(whole_batch(problem, skip=skip)):
        own = {}
        for name, value in whole.items():
            parameter = name.partition(", ")[2].removesuffix(" gradient")
            if parameter in shapes:
                dim = chosen.dim(parameter, shapes[parameter])
                degree = chosen.degree(problem.world_size, parameter)
                own[name] = value if dim is None else shard(value, degree, dim)[rank % degree]
            else:
                own[name] = value * chosen.times if parameter == "input" else value
        results.append(own)
    return results


@pytest.mark.ranks(2)
@pytest.mark.parametrize("recurse", [True, False], ids=["all wait", "the root waits"])
def test_who_waits_with_the_reduction(ranks: Ranks, recurse: bool) -> None:
    """The first layer, a unit of its own, reduces its gradients at once unless the root's choice goes for all."""
    problem = Problem(world_size=2, seed=1)
    expected = [] if recurse else ["first.weight", "first.bias"]
    for rank, names in enumerate(ranks.run(reduced_apart, problem=problem, recurse=recurse)):
        assert names == expected, f"rank {rank} has gradients of {names}, expected {expected}"


@pytest.mark.ranks(2)
def test_what_is_frozen_for_a_step_gets_no_gradient(ranks: Ranks) -> None:
    problem = Problem(world_size=2, seed=1, steps=3)
    names = list(problem.parameters())
    expected = [names, [name for name in names if not name.startswith("first.")], names]
    for rank, trained in enumerate(ranks.run(frozen_later, problem=problem)):
        assert trained == expected, f"rank {rank}: gradients of {trained} in each step, expected {expected}"


@pytest.mark.ranks(2)
def test_inference_mode(ranks: Ranks) -> None:
    """Gathered parameters are tensors of inference mode then."""
    problem = Problem(world_size=2, seed=1, outputs=3, steps=3)
    got = [ranks.run(inferred, problem=problem, whole=whole) for whole in (False, True)]
    for rank in range(2):
        for step, (x, _) in enumerate(problem.batches(rank)):
            network = Network({name: value + step for name, value in problem.parameters().items()})
            expected = [network(x[0]).detach()] * 2
            assert_each([outputs[rank][step] for outputs in got], expected, f"rank {rank}, step {step}, output")


@pytest.mark.ranks(2)
def test_a_state_of_gathered_parameters(ranks: Ranks) -> None:
    """It has the shards, and the next forward has what is loaded."""
    problem = Problem(world_size=2, seed=1, outputs=3)
    got = ranks.run(replaced_while_gathered, problem=problem)
    for number in range(2):
        values = {name: value * 2**number for name, value in problem.parameters().items()}
        expected: list[Tensors] = []
        for rank in range(2):
            x, _ = problem.batches(rank)[0]
            expected.append({name: shard(value, 2, 0)[rank] for name, value in values.items()})
            expected[rank]["output"] = Network(values)(x[0]).detach()
        assert_same([told[number] for told in got], expected, ordered=False)


@pytest.mark.ranks(2)
@pytest.mark.parametrize("cast", [True, False], ids=["inputs cast", "inputs as they are"])
@pytest.mark.parametrize("output", [None, torch.float32, torch.float64], ids=str)
def test_dtypes_of_inputs_and_outputs(ranks: Ranks, cast: bool, output: torch.dtype | None) -> None:
    """bfloat16 rounds the inputs, whole numbers of 12 bits, if they are cast; the products of the rest are exact."""
    x = integers((3, 4), torch.float32, seed=1, low=2049, high=4095)
    weight = integers((2, 4), torch.float32, seed=2, low=-2, high=2)
    inputs = x.bfloat16() if cast else x.double()
    policy = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16 if cast else torch.float64, output_dtype=output, cast_forward_inputs=cast
    )
    got = ranks.run(typed, x=x if cast else x.double(), weight=weight, policy=policy)
    assert [seen for seen, _ in got] == [inputs.dtype] * 2, "the dtype that the layer gets its input in"
    whole = (inputs @ weight.T.to(inputs.dtype)).to(output or inputs.dtype)
    assert_each([product for _, product in got], [whole] * 2, "output")


@pytest.mark.skipif(
    torch.__version__ < "2.13",  # compared as a version
    reason=f"torch {torch.__version__} casts no outputs of such layers: 2.13 is needed",
)
@pytest.mark.ranks(2)
def test_outputs_of_layers_that_are_sharded_together(ranks: Ranks) -> None:
    """All are cast, whichever layer is called last: float32 products of numbers that bfloat16 rounds at the end."""
    x = integers((3, 4), torch.float32, seed=1, low=2049, high=4095)
    weights = [integers((rows, 4), torch.float32, seed=rows, low=-2, high=2) for rows in (2, 3)]
    policy = MixedPrecisionPolicy(param_dtype=torch.float32, output_dtype=torch.bfloat16)
    expected = [(x @ weight.T).bfloat16() for weight in (weights[0], *weights)]
    for place, of_ranks in enumerate(zip(*ranks.run(typed_together, x=x, weights=weights, policy=policy), strict=True)):
        assert_each(of_ranks, [expected[place]] * 2, f"output {place}")


@pytest.mark.ranks(2)
def test_inputs_that_are_not_cast_do_not_fit_the_parameters(ranks: Ranks) -> None:
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, cast_forward_inputs=False)
    with pytest.raises(RuntimeError, match="dtype"):
        ranks.run(typed, x=torch.ones(1, 2), weight=torch.ones(2, 2), policy=policy)


@pytest.mark.ranks(2)
@pytest.mark.parametrize("recurse", [False, True])
@pytest.mark.parametrize(
    ("method", "changed"),
    [
        ("set_reshard_after_forward", "gathered after forward"),
        ("set_reshard_after_backward", "gathered after backward"),
        ("set_requires_gradient_sync", "with a gradient"),
        ("set_requires_all_reduce", "with a gradient"),
        ("set_reduce_scatter_unused_params", "with a gradient of what is unused"),
    ],
)
def test_one_module_or_those_within_too(ranks: Ranks, method: str, changed: str, recurse: bool) -> None:
    """Numbers would be the same: what is set for too many modules costs time or memory, for too few as well."""
    if not hasattr(FSDPModule, method):
        pytest.skip(f"torch {torch.__version__} has no {method} of FSDPModule")
    usual = {
        "gathered after forward": False,
        "gathered after backward": False,
        "with a gradient": True,
        "with a gradient of what is unused": False,
    }
    expected = {name: [was != (name == changed), was != (name == changed and recurse)] for name, was in usual.items()}
    for rank, got in enumerate(ranks.run(switched, method=method, recurse=recurse)):
        assert got == expected, f"rank {rank}, the outer and the inner module: {got}, expected {expected}"
