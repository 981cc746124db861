"""How many numbers an operation adds up one after another: the error of such a sum grows with their number."""

from __future__ import annotations

import math
from typing import Any

import torch

_PRODUCTS = {
    "mm": 0,
    "bmm": 0,
    "mv": 0,
    "dot": 0,
    "linear": 0,
    "addmm": 1,
    "baddbmm": 1,
    "addbmm": 1,
    "addmv": 1,
}
"""Which argument is the left factor; its last dimension is summed over."""
MATRIX_PRODUCTS = frozenset({*_PRODUCTS, "linear_backward"})
"""Operations that multiply matrices."""
_NORMS = frozenset(
    "native_layer_norm_backward native_group_norm_backward native_batch_norm_backward".split()  # noqa: SIM905
)
_OF_PRODUCTS, _OF_LOOPS, _OF_CONVOLUTIONS = 0.35, 0.5, 0.8
"""Unit roundoffs by which a sum may be off, over the root of its number of addends."""
_LONG = 1 << 13
"""From about so many addends on, a loop's rounding errors in float32 no longer cancel."""


def compute_addend_error(name: str, args: Any) -> float:
    """By how many unit roundoffs each addend of a product may be off, to stand for errors of the sums on the way.

    Args:
        name: of the operation.
        args: its arguments.

    Returns:
        0 of what is no product, and of half precision, whose sums are made in float32.
    """
    left = args[_PRODUCTS[name]] if name in _PRODUCTS else None
    return 0.0 if left is None or left.element_size() < 4 else _OF_PRODUCTS * math.sqrt(left.shape[-1])


def compute_result_error(name: str, args: Any, result: torch.Tensor) -> float:
    """By how many unit roundoffs the order of additions may move a result.

    The factors were measured with torch on CPUs: products of up to 16384 addends, and gradients of norms, embeddings
    and convolutions with up to 500000.

    Args:
        name: of the operation.
        args: its arguments.
        result: one of its results.

    Returns:
        0 of an operation without long sums, and of half precision.
    """
    if result.element_size() < 4:
        return 0.0
    if name in _PRODUCTS:
        return compute_addend_error(name, args)
    if name == "convolution":
        return _OF_CONVOLUTIONS * math.sqrt(args[1].numel() / args[1].shape[0])
    if name == "convolution_backward":
        gradient, weight = args[0], args[2]
        if result.shape not in (weight.shape, weight.shape[:1], weight.shape[1:2]):
            return _OF_CONVOLUTIONS * math.sqrt(weight.numel() / weight.shape[1])
        count = gradient.numel() / gradient.shape[1]
        return _OF_CONVOLUTIONS * math.sqrt(count) * (1 + (count / _LONG if result.dim() == 1 else 0.0))
    if name in _NORMS:
        return _OF_LOOPS * math.sqrt(args[0].numel() / max(1, result.numel()))
    if name == "embedding_dense_backward" and args[1].numel():
        return _OF_LOOPS * math.sqrt(int(torch.bincount(args[1].flatten()).max()))
    return 0.0
