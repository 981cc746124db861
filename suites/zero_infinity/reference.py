"""What an optimizer on one device keeps for each parameter after all steps, from the gradients alone."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from suites.shared.problems import Problem
from suites.shared.references import whole_batch
from suites.shared.step import Tensors

BETAS = 0.5, 0.75
"""The betas of ``problems.ADAM``."""


def whole_state(problem: Problem) -> Tensors:
    """The state after the last step, by the parameter's name and the state's.

    SGD's momentum is 1: the sum of all gradients. Adam's moments are those of Kingma and Ba, arXiv:1412.6980, algorithm
    1, without the correction of their bias. Gradients are whole and the betas dyadic: nothing is rounded.
    """
    results = whole_batch(problem)[0]
    state: Tensors = {}
    for name in problem.parameters():
        gradients = [results[f"step {step + 1}, {name} gradient"] for step in range(problem.steps)]
        if problem.optimizer == "sgd":
            state[f"{name}.momentum_buffer"] = torch.stack(gradients).sum(0)
        else:
            state[f"{name}.exp_avg"] = _mean(gradients, BETAS[0])
            state[f"{name}.exp_avg_sq"] = _mean([gradient**2 for gradient in gradients], BETAS[1])
            state[f"{name}.step"] = torch.tensor([float(problem.steps)])
    return state


def _mean(terms: Sequence[torch.Tensor], beta: float) -> torch.Tensor:
    ages = reversed(range(len(terms)))
    return (1 - beta) * torch.stack([beta**age * term for age, term in zip(ages, terms, strict=True)]).sum(0)
