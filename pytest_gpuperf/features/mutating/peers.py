"""A call over another group of ranks: what its ranks gave is exchanged by the job's store. Runs in rank processes.

A real call on another group would hang where its ranks make no such call. A store only has no such key then, and the
call is left as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from pytest_gpuperf.features.mutating.altering import compute_own_result
from pytest_gpuperf.features.mutating.faults import Family
from pytest_gpuperf.features.mutating.operators import Operator
from pytest_gpuperf.torch_internals import find_default_store, group_ranks, open_groups

_LARGEST = 1 << 22  # bytes of one call: a store is slow
_PATIENCE = timedelta(seconds=2)
_GIVEN = "gpuperf mutate, given by"

_REDUCTIONS: Sequence[Callable[[torch.Tensor], torch.Tensor]] = (
    lambda parts: parts.sum(0),
    lambda parts: parts.mean(0),
    lambda parts: parts.amax(0),
    lambda parts: parts.amin(0),
    lambda parts: parts.prod(0),
)


def find_other_ranks(group: Any) -> tuple[int, ...]:
    """The global ranks of another group that has this rank, else of its half of the group; none for two ranks."""
    own, world = group_ranks(group), tuple(range(dist.get_world_size()))
    if dist.get_rank() not in own:  # torch does not know the group
        return ()
    groups = [group_ranks(one) for one in open_groups()]
    others = [ranks for ranks in groups if dist.get_rank() in ranks and len(ranks) > 1 and sorted(ranks) != sorted(own)]
    # A group of the same size is the likelier mistake, and the world the last one.
    others.sort(key=lambda ranks: (len(ranks) != len(own), ranks == world))
    if others:
        return others[0]
    half = len(own) // 2
    is_first = own.index(dist.get_rank()) < half
    return (own[:half] if is_first else own[half:]) if half > 1 else ()


class Peers:
    """What the ranks give to the calls of one program."""

    def __init__(self, trial: str) -> None:
        """Takes away what this rank gave in a program before.

        Args:
            trial: names the program among all that the store has seen.
        """
        self._trial = trial
        self._store = find_default_store()
        self._rank = dist.get_rank()
        self._lost = False
        self._given: list[str] = []
        if self._store.check([self._listed]):
            for key in self._store.get(self._listed).decode().splitlines():
                self._store.delete_key(key)

    @property
    def _listed(self) -> str:
        return f"{_GIVEN} {self._rank}"

    def give(self, call: int, tensors: Sequence[torch.Tensor]) -> None:
        """Lays what this rank gives to a call where the others find it; if it is too large, no call is altered."""
        if sum(tensor.nbytes for tensor in tensors) > _LARGEST:
            self._lost = True
            return
        self._given.append(self._make_key(call, self._rank))
        self._store.set(self._listed, "\n".join(self._given))
        value: Any = b"".join(_pack_tensor(tensor) for tensor in tensors)  # torch declares text only
        self._store.set(self._given[-1], value)

    def over(
        self, call: int, group: Any, operator: Operator, given: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]
    ) -> Sequence[torch.Tensor] | None:
        """Returns what a call would have come to over the other group; None if that is not known.

        Which reduction it is, the call itself has shown.

        Args:
            call: among those of its site, from 1 on.
            group: over which it was made.
            operator: that was called.
            given: what this rank gave.
            outputs: what it came to.
        """
        own, others = group_ranks(group), find_other_ranks(group)
        of_own, of_others = (self._take(call, ranks, given) for ranks in (own, others))
        if of_own is None or of_others is None:
            return None
        rank, size = group.rank(), group.size()
        found = []
        for index, out in enumerate(outputs):
            if operator.family is Family.GATHER:
                if len(own) != len(others):
                    return None
                found.append(_gather(of_others, out, index))
                continue
            parts, other_parts = (
                torch.stack([compute_own_result(operator, one, out, index, rank, size) for one in several])
                for several in (of_own, of_others)
            )
            reduce = (
                None if out.is_complex() else next((one for one in _REDUCTIONS if _comes_to(one, parts, out)), None)
            )
            if reduce is None:
                return None
            found.append(reduce(other_parts.double()).to(out.dtype))
        return found

    def _make_key(self, call: int, rank: int) -> str:
        return f"gpuperf mutate {self._trial} {call} {rank}"

    def _take(self, call: int, ranks: Sequence[int], like: Sequence[torch.Tensor]) -> list[list[torch.Tensor]] | None:
        """What each of some ranks gave, as tensors like this rank's; None if one of them gave nothing such."""
        keys = [self._make_key(call, rank) for rank in ranks]
        if self._lost or not keys:
            return None
        try:
            self._store.wait(keys, _PATIENCE)
        except RuntimeError:
            self._lost = True  # and no later call waits in vain
            return None
        found = [_unpack_tensors(self._store.get(key), like) for key in keys]
        return [one for one in found if one is not None] if None not in found else None


def _pack_tensor(tensor: torch.Tensor) -> bytes:
    data: bytes = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
    return data


def _unpack_tensors(data: bytes, like: Sequence[torch.Tensor]) -> list[torch.Tensor] | None:
    if len(data) != sum(tensor.nbytes for tensor in like):
        return None
    found, begin = [], 0
    for tensor in like:
        held = torch.frombuffer(bytearray(data[begin : begin + tensor.nbytes]), dtype=torch.uint8)
        found.append(held.view(tensor.dtype).view(tensor.shape).to(tensor.device))
        begin += tensor.nbytes
    return found


def _gather(inputs: Sequence[Sequence[torch.Tensor]], out: torch.Tensor, index: int) -> torch.Tensor:
    whole = torch.cat([one.reshape(-1) for of_rank in inputs for one in of_rank])
    if whole.numel() == out.numel():
        return whole.view_as(out)
    return inputs[index][0].view_as(out)


def _comes_to(reduce: Callable[[torch.Tensor], torch.Tensor], parts: torch.Tensor, out: torch.Tensor) -> bool:
    if out.is_complex():
        return False
    wide = parts.double()
    loose = 2.0**-6 if out.element_size() < 4 else 1e-4
    largest = float(wide.abs().nan_to_num(0.0, 0.0, 0.0).sum(0).max()) if wide.numel() else 0.0
    return torch.allclose(reduce(wide), out.double(), rtol=loose, atol=loose * largest, equal_nan=True)
