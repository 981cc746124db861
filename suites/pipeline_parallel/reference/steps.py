"""What the whole model computes in several steps, each with a batch of its own, that move parameters by signs.

Whole numbers stay whole numbers so, and every step is exact. Width 2 and parameters of at most 1 + k after k steps make
3 (1 + k) a of at most a in each layer. A batch is wide in its input or in its target: they need more bits than float32
has, and what is multiplied with them is small.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from suites.pipeline_parallel.programs.stages import evaluates
from suites.pipeline_parallel.programs.training import Minibatch
from suites.pipeline_parallel.reference.model import DTYPE, Case, magnitude, whole_model
from suites.shared.inputs import integers
from suites.shared.step import Tensors

WIDE = 2**26


def wide(shape: tuple[int, ...], seed: int) -> torch.Tensor:
    """Odd whole numbers of up to 27 bits."""
    drawn = torch.randint(-WIDE, WIDE, shape, generator=torch.Generator().manual_seed(seed), dtype=torch.int64)
    return (2 * drawn + 1).to(DTYPE)


def batches_of(case: Case, *, gated: bool = False) -> list[Minibatch]:
    """Three batches of the case's shape: one is wide in its input, one in its target, and one has an input of zeros.

    Whatever a step keeps of the one before is seen.
    """
    rows = case.x.shape, case.target.shape
    small = [integers(shape, DTYPE, seed=seed, low=-2, high=2) for seed, shape in enumerate(rows, 2)]
    inputs = [wide(rows[0], 5), small[0], torch.zeros_like(case.x)]
    targets = [small[1], wide(rows[1], 6), -case.target - 1]
    # Of 1 and -1, by row.
    gates = [2 * integers((len(case.x), 1), DTYPE, seed=seed, low=0, high=1) - 1 for seed in (7, 8, 9)]
    return [
        Minibatch(x, target, gate if gated else None) for x, target, gate in zip(inputs, targets, gates, strict=True)
    ]


def continued(case: Case, after: Tensors) -> Case:
    """The case with the parameters that a step has left."""
    return case._replace(
        stages=[
            [
                (after[f"stage {index}.{2 * place}.weight"], after[f"stage {index}.{2 * place}.bias"])
                for place in range(len(layers))
            ]
            for index, layers in enumerate(case.stages)
        ]
    )


def move(case: Case, results: Tensors) -> Case:
    """The case after a step by the signs of the gradients; the results tell where the parameters are then."""
    before = whole_parameters(case)
    results |= {name: before[name] - results[f"{name} gradient"].sign() for name in before}
    return continued(case, results)


def whole_parameters(case: Case) -> Tensors:
    """All parameters by name."""
    return {
        f"stage {index}.{2 * place}.{name}": value
        for index, layers in enumerate(case.stages)
        for place, pair in enumerate(layers)
        for name, value in zip(("weight", "bias"), pair, strict=True)
    }


def whole_steps(case: Case, batches: list[Minibatch], *, divisor: int = 1) -> list[Tensors]:
    """A step with each batch, and the output for the next batch after it; gradients are divided once, at the end."""
    results = []
    for batch, after in zip(batches, [*batches[1:], batches[0]], strict=True):
        step = whole_model(case._replace(x=batch.x, target=batch.target))
        step |= {name: tensor / divisor for name, tensor in step.items() if name.endswith("gradient")}
        case = move(case, step)
        if evaluates(case.schedule):
            step["evaluation"] = whole_model(case._replace(x=after.x, target=after.target))["output"]
        results.append(step)
    return results


def whole_accumulated(case: Case, batches: list[Minibatch], max_norm: float | None = None) -> Tensors:
    """One step with the mean over all batches, clipped to the norm of all gradients."""
    together = case._replace(
        x=torch.cat([batch.x for batch in batches]),
        target=torch.cat([batch.target for batch in batches]),
        microbatches=len(batches) * case.microbatches,
    )
    step = whole_model(together)
    before = whole_parameters(case)
    norm = torch.cat([step[f"{name} gradient"].flatten() for name in before]).square().sum().sqrt()
    if max_norm is not None:
        for name in before:
            step[f"{name} gradient"] *= (max_norm / norm).clamp(max=1.0)
    step |= {name: before[name] - step[f"{name} gradient"] for name in before}
    return step if max_norm is None else {**step, "norm": norm}


def linked_step(case: Case, batch: Minibatch, masks: list[torch.Tensor]) -> Tensors:
    """A step of the model of linked stages, with the masks that dropout has drawn for each stage."""
    assert batch.gate is not None
    leaves = {name: value.clone().requires_grad_() for name, value in whole_parameters(case).items()}
    results: Tensors = {}
    hidden, before = batch.x, torch.zeros_like(batch.x)
    for index, layers in enumerate(case.stages):
        results |= {
            f"stage {index}.mask": masks[index],
            f"stage {index}.seen": hidden.detach().sum(0),
            f"stage {index}.rows": torch.tensor(len(hidden)),
        }
        inside = hidden * masks[index] * batch.gate
        for place in [*range(len(layers))] * 2:
            name = f"stage {index}.{2 * place}"
            inside = magnitude(functional.linear(inside, leaves[f"{name}.weight"], leaves[f"{name}.bias"]))
        hidden, before = inside - before, hidden * batch.gate
    losses = torch.stack([chunk.sum() for chunk in (hidden * batch.target).chunk(case.microbatches)])
    gradients = torch.autograd.grad(losses.sum(), list(leaves.values()))
    results |= {f"{name} gradient": gradient for name, gradient in zip(leaves, gradients, strict=True)}
    return {**results, "output": hidden.detach(), "losses": losses.detach()}
