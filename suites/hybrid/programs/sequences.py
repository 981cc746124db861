"""Context parallelism: each rank has a part of every sequence, and attention gathers the keys and values of all.

A sequence is cut into 2R pieces, and rank r has the pieces r and 2R-1-r. The piece i attends to i + 1 pieces. So each
rank attends to r + 1 + 2R - r = 2R + 1 pieces, whatever r is. Llama 3 (arXiv 2407.21783),
section 3.3.2, gathers and cuts likewise.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed._functional_collectives import all_gather_tensor_autograd, wait_tensor

from suites.shared.llama import Attend


@dataclass(frozen=True, slots=True)
class SplitSequence:
    """How sequences are split over a group of ranks."""

    rank: int
    ranks: int
    group: dist.ProcessGroup | None = None
    """None if only ``part`` is asked for."""

    @classmethod
    def over(cls, group: dist.ProcessGroup) -> SplitSequence:
        """The split over the ranks of a group."""
        return cls(dist.get_rank(group), dist.get_world_size(group), group)

    @property
    def pieces(self) -> tuple[int, int]:
        """The numbers of the rank's pieces."""
        return self.rank, 2 * self.ranks - 1 - self.rank

    def part(self, whole: torch.Tensor, dim: int) -> torch.Tensor:
        """The rank's pieces of what is along the whole sequence in this dimension.

        Raises:
            ValueError: The sequence does not divide into the pieces.
        """
        length = whole.shape[dim]
        if length % (2 * self.ranks):
            raise ValueError(f"{length} tokens make no {2 * self.ranks} equal pieces for cp {self.ranks}")
        pieces = whole.chunk(2 * self.ranks, dim)
        return torch.cat([pieces[index] for index in self.pieces], dim)

    def places(self, length: int, device: torch.device) -> torch.Tensor:
        """The places of so many tokens of the rank in the sequence."""
        return self.part(torch.arange(length * self.ranks, device=device), 0)

    def attended(self, attend: Attend, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """What the rank's queries see of all keys up to their own; all are B x heads x tokens x D."""
        keys, values = self._whole(key), self._whole(value)
        piece = query.shape[2] // 2
        seen = [(index + 1) * piece for index in self.pieces]
        return torch.cat(
            [
                attend(own, keys[:, :, :until], values[:, :, :until])
                for own, until in zip(query.chunk(2, 2), seen, strict=True)
            ],
            2,
        )

    def _whole(self, part: torch.Tensor) -> torch.Tensor:
        """All ranks' pieces in the order of the sequence."""
        assert self.group is not None
        gathered = wait_tensor(all_gather_tensor_autograd(part.contiguous(), 0, self.group))
        held = gathered.unflatten(0, (self.ranks, -1)).unflatten(3, (2, -1))  # ranks x B x heads x 2 x piece x D
        forward, backward = held[:, :, :, 0], held[:, :, :, 1].flip(0)
        return torch.cat([forward, backward]).permute(1, 2, 0, 3, 4).flatten(2, 3)
