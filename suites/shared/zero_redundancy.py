"""torch's ZeroRedundancyOptimizer, whose package warns when it is imported."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch


def zero_redundancy() -> Callable[..., torch.optim.Optimizer]:
    """torch.distributed.optim.ZeroRedundancyOptimizer, whose package uses what torch itself has deprecated."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`torch.jit.script` is deprecated", DeprecationWarning)
        from torch.distributed.optim import ZeroRedundancyOptimizer
    return ZeroRedundancyOptimizer
