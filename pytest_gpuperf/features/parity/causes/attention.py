"""Which keys an attention counted, and how often."""

from __future__ import annotations

import torch

from pytest_gpuperf.features.parity.case import Case
from pytest_gpuperf.features.parity.operations import Value

_MOVES = frozenset(
    """alias clone contiguous copy_ detach expand permute reshape select slice squeeze t transpose unsqueeze view
    _unsafe_view""".split()  # noqa: SIM905
)
_MOST_KEYS = 96


def find_key_weights(case: Case, rank: int) -> list[float] | None:
    """How often each key counts in what a rank holds, as the product of probabilities and values has it.

    Returns:
        0 of keys that are left out, 1 of the least others; None if the tensor is no attention, or no weights do.
    """
    parts = _compute_contributions(case)
    if parts is None:
        return None
    values, sums = parts
    held, tau = case.got[rank].flatten(), case.tau[rank].flatten()
    columns = torch.stack([case.parts[rank].of(one).flatten() for one in values], 1)
    totals = torch.stack([case.parts[rank].of(one).flatten() for one in sums], 1)
    if len(held) < columns.shape[1] + 4:
        return None
    # got * sum(w p) = sum(w p v): the weights are the null vector.
    scale = torch.linalg.vector_norm(totals, dim=0).clamp(min=1e-300)
    matrix = (columns - totals * held[:, None]) / scale
    _, singular, rows = torch.linalg.svd(matrix, full_matrices=False)
    if not float(singular[-1]) < 1e-3 * float(singular[-2]):
        return None
    weights = rows[-1] / scale
    weights = weights / weights[weights.abs().argmax()]
    weights = torch.where(weights.abs() < 1e-6, torch.zeros_like(weights), weights)
    if bool((weights < 0).any()):
        return None
    least = float(weights[weights > 0].min())
    weights = torch.round(weights / least * 1e4) / 1e4
    got = (columns @ weights) / (totals @ weights).clamp(min=1e-300)
    if not bool(((got - held).abs() <= 4 * tau).all()) or float(weights.max()) > 1e3 or len(set(weights.tolist())) > 3:
        return None
    return None if bool((weights == 1).all()) else [float(one) for one in weights]


def _compute_contributions(case: Case) -> tuple[list[torch.Tensor], list[torch.Tensor]] | None:
    """What each key adds to the tensor: its value times its probability, and the probability alone."""
    path, one = [], case.value
    while one is not None and one.operation is not None and one.operation.name in _MOVES and one.operation.inputs:
        path.append(one.operation)
        one = one.operation.inputs[-1 if one.operation.name == "copy_" else 0]
    if one is None or one.operation is None or one.operation.name not in ("bmm", "mm"):
        return None
    first, second = one.operation.inputs
    found = None
    for probabilities, other, left in ((first, second, True), (second, first, False)):
        if _is_softmax(probabilities):
            found = (probabilities, other, left)
            break
    if found is None:
        return None
    probabilities, other, left = found
    p, v = probabilities.tensor.double(), other.tensor.double()
    keys = p.shape[-1] if left else p.shape[-2]
    if not 2 < keys <= _MOST_KEYS:
        return None
    values: list[torch.Tensor] = []
    sums: list[torch.Tensor] = []
    for key in range(keys):
        if left:
            value = p[..., key : key + 1] @ v[..., key : key + 1, :]
            total = p[..., key : key + 1].expand(value.shape)
        else:
            value = v[..., key : key + 1] @ p[..., key : key + 1, :]
            total = p[..., key : key + 1, :].expand(value.shape)
        for index, tensor in enumerate((value, total)):
            moved = tensor
            for operation in reversed(path):
                if operation.name != "copy_":
                    moved = operation.function(moved, *operation.args[1:], **operation.kwargs)
            if moved.shape != case.whole.shape:
                return None
            (values, sums)[index].append(moved)
    return values, sums


def _is_softmax(value: Value) -> bool:
    one: Value | None = value
    while one is not None and one.operation is not None and one.operation.name in _MOVES and one.operation.inputs:
        one = one.operation.inputs[0]
    return one is not None and one.operation is not None and one.operation.name.strip("_") == "softmax"
