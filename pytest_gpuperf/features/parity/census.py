"""A census of copies: which tensors are equal on which ranks, and which were equal and drifted apart."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import torch
from torch import nn

from pytest_gpuperf.features.parity.case import Groups, format_ranks
from pytest_gpuperf.features.parity.records import strip_wrappers

_WORDS = 256  # of 8 bytes, in a row of a tensor's bytes


def digests(tensors: Mapping[str, torch.Tensor]) -> dict[str, bytes]:
    """Digests tensors by name: the 32 bytes differ if one bit of the tensor's own part differs.

    Large tensors are added up in 64-bit words first, at the speed of the memory, so that little is left to hash. A
    changed bit changes a sum, and so do words that change places.
    """
    found = {}
    elsewhere: dict[torch.device, dict[str, torch.Tensor]] = {}
    for name, tensor in tensors.items():
        value: Any = tensor
        if hasattr(value, "to_local"):
            value = value.to_local()
        plain: torch.Tensor = value.detach()
        made = hashlib.sha256(f"{plain.dtype} {tuple(plain.shape)}".encode())
        found[name] = made
        data = plain.contiguous().view(-1).view(torch.uint8)
        if data.is_cpu:
            for piece in _sum(data):
                made.update(piece.numpy().data)
        else:
            elsewhere.setdefault(data.device, {})[name] = data
    for device, several in elsewhere.items():
        for name, rows in _weigh(device, several):
            found[name].update(rows)
    return {name: made.digest() for name, made in found.items()}


def _sum(data: torch.Tensor) -> list[torch.Tensor]:
    """Sums of the rows and of the columns of a table of words, and what is left over; few bytes, as they are."""
    rows = data.numel() // (8 * _WORDS)
    if rows < 2:
        return [data]
    whole = rows * 8 * _WORDS
    head = data[:whole]
    if head.storage_offset() % 8:
        head = head.clone()
    table = head.view(torch.int64).view(rows, _WORDS)
    return [table.sum(0), table.sum(1), data[whole:]]


def _weigh(device: torch.device, several: Mapping[str, torch.Tensor]) -> Iterator[tuple[str, memoryview]]:
    """Sums of rows of all tensors of a GPU, each word times an odd weight: few kernels, and one copy to the host.

    Sums are modulo 2**64, where an odd weight loses no bit of a changed word.
    """
    width = 8 * _WORDS
    padding = torch.zeros(width, dtype=torch.uint8, device=device)
    pieces = []
    for data in several.values():
        pieces += [data, padding[: -data.numel() % width]]
    table = torch.cat(pieces).view(torch.int64).view(-1, _WORDS)
    draw = random.Random(0)
    weights = torch.tensor([draw.getrandbits(63) | 1 for _ in range(_WORDS)], device=device)
    host = (table * weights).sum(1).cpu().numpy().data
    begin = 0
    for name, data in several.items():
        end = begin + -(-data.numel() // width)
        yield name, host[begin:end]
        begin = end


@dataclass
class Census:
    """What one rank holds at points of a run: digests by name. A program returns it to ``parity.census``."""

    rows: list[tuple[str, dict[str, bytes]]] = field(default_factory=list)
    meshes: tuple[tuple[tuple[str, int], ...], ...] = ()


class census:  # noqa: N801  # used as a statement: with census(model, optimizer) as seen
    """Takes digests before the loop and after each step: ``with census(model, optimizer) as seen: ...; return seen``.

    Parameters, gradients, buffers, optimizer state and the generators of torch, CUDA and Python count. Generators of
    ranks may well differ from the start; only what was equal and is no longer is a drift.
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> None:
        self._model = model
        self._optimizer = optimizer
        self._seen = Census()
        self._step = 0
        self._handles: list[Any] = []

    def __enter__(self) -> Census:
        self.take("the start")
        if self._optimizer is not None:
            self._handles = [
                self._optimizer.register_step_pre_hook(lambda *_: self._take_gradients()),
                self._optimizer.register_step_post_hook(lambda *_: self._end_step()),
            ]
        return self._seen

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for handle in self._handles:
            handle.remove()

    def take(self, when: str) -> None:
        """Takes digests of all that counts.

        Args:
            when: the point of the run, in words; equal on all ranks.
        """
        held: dict[str, torch.Tensor] = {}
        for name, parameter in self._model.named_parameters():
            name = strip_wrappers(name)
            held[f"parameter {name}"] = parameter
            if self._optimizer is not None:
                for entry, state in (self._optimizer.state.get(parameter) or {}).items():
                    if isinstance(state, torch.Tensor):
                        held[f"state {name}.{entry}"] = state
        for name, buffer in self._model.named_buffers():
            held[f"buffer {strip_wrappers(name)}"] = buffer
        held["torch's generator"] = torch.random.get_rng_state()
        if torch.cuda.is_initialized():
            held["CUDA's generator"] = torch.cuda.get_rng_state()
        row = digests(held)
        row["Python's generator"] = str(hash(random.getstate())).encode()  # of whole numbers
        if self._optimizer is not None:
            rates = repr([group.get("lr") for group in self._optimizer.param_groups])
            row["learning rates"] = rates.encode()
        self._seen.rows.append((when, row))

    def _take_gradients(self) -> None:
        row = digests(
            {
                f"gradient {strip_wrappers(name)}": parameter.grad
                for name, parameter in self._model.named_parameters()
                if parameter.grad is not None
            }
        )
        self._seen.rows.append((f"step {self._step + 1}, before the update", row))

    def _end_step(self) -> None:
        self._step += 1
        self.take(f"step {self._step}")


@dataclass(frozen=True, slots=True)
class Drift:
    """A tensor whose copies agreed and later did not."""

    name: str
    agreed: str
    """The last point at which they agreed."""
    since: str
    """The first point at which they did not."""
    ranks: tuple[tuple[int, ...], ...]
    """Ranks that are still alike, in groups."""

    def __str__(self) -> str:
        groups = "; ".join(format_ranks(ranks) for ranks in self.ranks)
        return f"{self.name} differs since {self.since} (agreed until {self.agreed}): now alike are only {groups}"


@dataclass(frozen=True)
class Agreement:
    """What ranks have in common, and what drifted apart."""

    equal: Mapping[str, tuple[str, ...]]
    """Names by the ranks among which they are equal at the end, in words."""
    drifts: Sequence[Drift]

    def __str__(self) -> str:
        lines = [f"census: {drift}" for drift in self.drifts[:12]]
        if len(self.drifts) > 12:
            lines.append(f"census: and {len(self.drifts) - 12} more")
        for where, names in self.equal.items():
            shown = ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
            lines.append(f"equal on {where}: {shown}")
        return "\n".join(lines)


def compare_censuses(taken: Sequence[Census], groups: Sequence[Groups] = ()) -> Agreement:
    """Compares the censuses of all ranks.

    Args:
        taken: by rank.
        groups: axes of the mesh, by which equal ranks are named.

    Raises:
        ValueError: ranks took their censuses at different points.
    """
    points = [[when for when, _ in one.rows] for one in taken]
    if any(one != points[0] for one in points):
        rank = next(index for index, one in enumerate(points) if one != points[0])
        raise ValueError(
            f"ranks took the census at different points: rank 0 at {len(points[0])}, rank {rank} at "
            f"{len(points[rank])}: take it at the same places on all ranks"
        )
    last: dict[str, tuple[str, tuple[int, ...]]] = {}
    drifts: dict[str, Drift] = {}
    for at, when in enumerate(points[0]):
        for name in dict.fromkeys(name for one in taken for name in one.rows[at][1]):
            pattern = _find_pattern([one.rows[at][1].get(name) for one in taken])
            known = last.get(name)
            if known is not None and name not in drifts and _has_parted(known[1], pattern):
                drifts[name] = Drift(name, known[0], when, _group_alike(pattern))
            last[name] = when, pattern
    equal: dict[str, list[str]] = {}
    for name, (_, pattern) in last.items():
        equal.setdefault(_describe_pattern(pattern, groups), []).append(name)
    return Agreement({where: tuple(names) for where, names in equal.items()}, list(drifts.values()))


def _find_pattern(digests: Sequence[bytes | None]) -> tuple[int, ...]:
    """The first rank that holds the same, for each rank."""
    first: dict[bytes | None, int] = {}
    return tuple(first.setdefault(one, rank) for rank, one in enumerate(digests))


def _has_parted(before: tuple[int, ...], now: tuple[int, ...]) -> bool:
    return any(now[rank] != now[first] for rank, first in enumerate(before))


def _group_alike(pattern: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(rank for rank, one in enumerate(pattern) if one == first) for first in dict.fromkeys(pattern))


def _describe_pattern(pattern: tuple[int, ...], groups: Sequence[Groups]) -> str:
    if len(set(pattern)) == 1:
        return "all ranks"
    alike = _group_alike(pattern)
    for group in groups:
        if sorted(group.ranks) == sorted(alike):
            return group.text
    return "no other rank" if len(alike) == len(pattern) else "; ".join(format_ranks(ranks) for ranks in alike)
