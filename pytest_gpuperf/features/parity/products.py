"""The precision of products of float32: GPUs may compute them in TF32, convolutions by default."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class Products:
    """Unit roundoffs of what computes products of float32, each only if it is coarser than float32 (TF32); else 0."""

    matrices: float = 0.0
    convolutions: float = 0.0
    recurrent: float = 0.0
    """What computes the products of recurrent networks."""

    def __or__(self, other: Products) -> Products:
        """The coarser of each."""
        return Products(
            max(self.matrices, other.matrices),
            max(self.convolutions, other.convolutions),
            max(self.recurrent, other.recurrent),
        )

    @property
    def coarsest(self) -> float:
        """The largest of all."""
        return max(self.matrices, self.convolutions, self.recurrent)


EXACT = Products()


def read_products(device: torch.device) -> Products:
    """Returns what a device computes products of float32 with, as torch.backends is set now."""
    if device.type != "cuda":
        return EXACT
    cudnn: Any = torch.backends.cudnn  # whose stubs lack these
    return Products(
        matrices=_read_unit([torch.backends.cuda.matmul, torch.backends]),
        convolutions=_read_unit([cudnn.conv, cudnn, torch.backends]),
        recurrent=_read_unit([cudnn.rnn, cudnn, torch.backends]),
    )


def _read_unit(settings: Sequence[Any]) -> float:
    """Returns the unit roundoff by the first of some settings that names a precision."""
    named = next((one.fp32_precision for one in settings if one.fp32_precision != "none"), "ieee")
    return {"tf32": 2.0**-11, "bf16": 2.0**-8}.get(named, 0.0)
