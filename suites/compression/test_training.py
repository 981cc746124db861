"""Gradient descent with compressed gradients ends where the theory of its errors says, near the uncompressed one."""

# No postponed annotations here: DistributedDataParallel looks at a hook's, and takes no strings.

from typing import Any

import pytest
import torch
import torch.distributed as dist

from pytest_gpuperf import Ranks
from suites.compression.programs import averaging as programs
from suites.compression.programs import quantized
from suites.compression.test_correctness import (
    QUANTIZERS,
    ROUNDING,
    all_reduced,
)
from suites.shared.comparison import assert_within

STEPS = 40
# Of what there was to gain, this much may be left; the exact descent leaves 5e-12, PowerSGD, the slowest, 1e-5.
LEFT = 1e-3


def problem(world_size: int) -> tuple[programs.Regression, torch.Tensor]:
    """Least squares for matrices of 6 x 4, a rank's own 16 rows; and the Hessian of the ranks' mean loss."""
    generator = torch.Generator().manual_seed(1)
    x = [torch.randn(16, 6, generator=generator) for _ in range(world_size)]
    solution = torch.randn(6, 4, generator=generator)
    y = [own @ solution + torch.randn(16, 4, generator=generator) / 4 for own in x]
    hessian = torch.stack([own.double().T @ own.double() / len(own) for own in x]).mean(dim=0)
    lr = 1 / torch.linalg.eigvalsh(hessian)[-1].item()
    return programs.Regression(x=x, y=y, lr=lr, steps=STEPS), hessian


def local_gradients(given: programs.Regression, weights: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns each rank's gradients, R x 4 x 6, in float64; and how far float32 may be off in their mean.

    A residual takes D products, an element of the gradient takes N, and 4 more operations follow. Each sum of k
    products is off by k u of the sum of their magnitudes (Higham, section 3.1).
    """
    gradients, errors = [], []
    for x, y in ((x.double(), y.double()) for x, y in zip(given.x, given.y, strict=True)):
        gradients.append((x @ weights.T - y).T @ x / len(x))
        magnitudes = (x.abs() @ weights.abs().T + y.abs()).T @ x.abs() / len(x)
        errors.append((x.shape[1] + len(x) + 4) * programs.FLOAT32_ROUNDOFF * magnitudes)
    return torch.stack(gradients), torch.stack(errors).mean(dim=0)


def allowed(name: str, gradients: torch.Tensor, step: int) -> torch.Tensor:
    """How far the mean of these gradients may be off in a step, beyond what the hook says that it keeps back."""
    flat = gradients.reshape(len(gradients), -1)
    quantizer = QUANTIZERS.get(name.partition(" ")[0])
    if quantizer is not None and ("feedback" not in name or step < quantized.START):
        bound = quantized.quantization_error(quantizer, flat, quantized.BLOCK)
    else:
        roundoff, dtype = ROUNDING.get(name, ROUNDING["float32"])
        bound = programs.averaging_error(len(flat), roundoff) * flat.abs().mean(dim=0)
        bound += programs.averaging_underflow(len(flat), dtype)
    return bound.view_as(gradients[0])


def assert_descends(
    results: list[programs.Descent], given: programs.Regression, hessian: torch.Tensor, name: str
) -> None:
    """Each step's mean is right but for what is allowed and what is kept back: the descent ends near the exact one.

    The exact descent contracts distances by rho = 1 - lr mu, mu the least curvature. Errors d_t of the mean of
    step t add lr |d_t|, contracted in all later steps. What is kept back, e_t before step t, is fed back:
    W_t - lr e_t descends exactly, but for gradients taken at W_t, which differ by H lr e_t (Karimireddy et al.,
    arXiv 1901.09847).
    """
    weights = results[0].weights.double()
    assert all(torch.equal(result.weights, results[0].weights) for result in results)
    errors = torch.stack([result.errors.double() for result in results])
    kept = torch.cat([torch.zeros_like(errors[:, :1]), errors], dim=1)
    curvature = torch.linalg.eigvalsh(hessian)
    rho = 1 - given.lr * curvature[0].item()

    exact, distance = torch.zeros_like(weights[0]), 0.0
    for step in range(given.steps):
        gradients, local = local_gradients(given, weights[step])
        before, after = kept[:, step], kept[:, step + 1]
        mean = (weights[step] - weights[step + 1]) / given.lr
        off = mean - gradients.mean(dim=0) - before.mean(dim=0) + after.mean(dim=0)
        # The sums with what is kept back, and of weights and update, each rounded a few times.
        magnitudes = gradients.abs().mean(dim=0) + before.abs().mean(dim=0) + after.abs().mean(dim=0) + mean.abs()
        sums = programs.FLOAT32_ROUNDOFF * (8 * magnitudes + 2 * weights[step].abs() / given.lr)
        bound = allowed(name, gradients, step) + local + sums
        assert_within(off, torch.zeros_like(off), bound, f"{name}, step {step}")
        pull = given.lr * float(bound.norm()) + given.lr**2 * curvature[-1].item() * float(before.mean(dim=0).norm())
        distance = rho * distance + pull
        exact = exact - given.lr * local_gradients(given, exact)[0].mean(dim=0)
    distance += given.lr * float(kept[:, -1].mean(dim=0).norm())
    assert float((weights[-1] - exact).norm()) <= distance, name

    def loss(weight: torch.Tensor) -> float:
        pairs = zip(given.x, given.y, strict=True)
        return sum(float((x.double() @ weight.T - y.double()).square().sum() / (2 * len(x))) for x, y in pairs)

    x, y = torch.cat(given.x).double(), torch.cat(given.y).double()
    least = loss(torch.linalg.lstsq(x, y).solution.T)
    assert loss(weights[-1]) - least <= LEFT * (loss(weights[0]) - least), name


@pytest.mark.ranks(2)
@pytest.mark.parametrize("name", programs.HOOKS)
def test_training_converges(ranks: Ranks, name: str) -> None:
    given, hessian = problem(ranks.world_size)
    hook, state = programs.HOOKS[name]
    assert_descends(ranks.run(programs.descend, problem=given, hook=hook, state=state), given, hessian, name)


@pytest.mark.ranks(2)
def test_your_own_hook(ranks: Ranks) -> None:
    """Yours in place of ours: a hook, what makes its state, and how far off it may be."""

    def in_float64(_: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        return all_reduced(bucket.buffer().double().div_(dist.get_world_size()), bucket)

    given, hessian = problem(ranks.world_size)
    results = ranks.run(programs.descend, problem=given, hook=in_float64, state=lambda: None)
    assert_descends(results, given, hessian, "float32")
