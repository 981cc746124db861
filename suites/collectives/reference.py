"""What each rank starts a collective with, and what it must end with: any element by itself, so that 1 GiB fits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from suites.shared.bits import OF_SIZE, bits_of, odd_numbers, random_bits
from suites.shared.places import repeated

CHUNK = 1 << 22
"""Elements that are made or compared at a time."""
FACTOR = 3
"""The factor of PREMUL_SUM: it is no power of two, and it is whole, so that the scaled sum is exact."""
REDUCTIONS = ("all_reduce", "reduce", "reduce_scatter", "reduce_scatter_then_all_gather")
MOVEMENTS = ("all_gather", "all_to_all", "all_to_all_uneven", "broadcast", "gather", "scatter", "send_recv")
ROOTED = ("broadcast", "gather", "reduce", "scatter")
_SPLIT = ("reduce_scatter", "reduce_scatter_then_all_gather", "all_to_all")
"""Their input has a share for each member."""

# Powers of two that the numbers are scaled by, so that a float's range is needed too. Nothing near the subnormals,
# which devices may flush, and sums stay below the largest number.
_EXPONENTS = {
    torch.float64: (-900, 0, 900),
    torch.float32: (-100, 0, 100),
    torch.bfloat16: (-100, 0, 100),
    torch.float16: (-10, 0, 3),
}
_EVERY = 13  # of so many elements in a row, one holds each extreme
_WRONG = "element {} of {} is {!r}, not {!r}; {} of the {} that were compared are wrong"


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """A collective of some ranks. Elements are counted as a rank's share, what one rank gives one other."""

    name: str
    numel: int
    """Elements of the share; of a reduce_scatter the output's, of an all_gather the input's."""
    dtype: torch.dtype
    seed: int
    members: tuple[int, ...]
    """Ranks of the world, in the group's order."""
    op: str = "sum"
    root: int = 0
    """A rank of the world."""
    splits: tuple[tuple[int, ...], ...] = ()
    """The number of elements that each member sends to each, in an uneven all_to_all."""
    extremes: bool = False
    """Whether a sum meets NaN, Inf, both signs of it, and what is too large for the dtype."""

    def __post_init__(self) -> None:
        """Refuses splits that are not the members'.

        Raises:
            ValueError: there are too many or too few.
        """
        size = len(self.members)
        if self.name == "all_to_all_uneven" and [len(row) for row in self.splits] != [size] * size:
            lengths = " and ".join(str(len(row)) for row in self.splits)
            raise ValueError(f"splits of {size} ranks are {size} rows of {size}, got rows of {lengths}")

    def again(self, step: int) -> Collective:
        """Returns this collective with the input of a later step."""
        return replace(self, seed=self.seed + 7919 * step)

    def started(self, rank: int) -> int:
        """How many elements the rank starts with."""
        size, index = len(self.members), self.members.index(rank)
        if self.name == "all_to_all_uneven":
            return sum(self.splits[index])
        if self.name == "scatter":
            return size * self.numel if rank == self.root else 0
        return self.numel * (size if self.name in _SPLIT else 1)

    def ended(self, rank: int) -> int | None:
        """How many elements the rank ends with; None where that is not defined."""
        if self.name in ("gather", "reduce") and rank != self.root:
            return None
        return sum(length for _, _, length in self._origins(rank))

    def start(self, rank: int, device: torch.device, *, out: torch.Tensor | None = None) -> torch.Tensor:
        """What the rank starts with; written to ``out`` if there is one."""
        numel = self.started(rank)
        out = torch.empty(numel, dtype=self.dtype, device=device) if out is None else out
        for at in range(0, numel, CHUNK):
            end = min(at + CHUNK, numel)
            out[at:end] = self._given(rank, at, end, device)
        return out

    def assert_right(self, rank: int, output: torch.Tensor | None, *, steps: int = 1) -> None:
        """The rank holds what the collective's definition says, after so many steps on the same buffers.

        Raises:
            AssertionError: it does not; says where, and how many elements are wrong.
        """
        where, numel = f"rank {rank}, {self}", self.ended(rank)
        if numel is None:
            # What a reduce leaves on other ranks is not defined.
            assert self.name == "reduce" or output is None, f"{where}: {output} instead of None"
            return
        assert output is not None, f"{where}: None instead of {numel} elements"
        assert (output.numel(), output.dtype) == (numel, self.dtype), f"{where}: {output.numel()} of {output.dtype}"
        flat, at = output.reshape(-1), 0
        for sender, offset, length in self._origins(rank):
            for begin in range(0, length, CHUNK):
                end = min(begin + CHUNK, length)
                got = flat[at + begin : at + end]
                self._compare(got, sender, offset + begin, offset + end, steps, where, at + begin)
            at += length

    def assert_untouched(self, rank: int, x: torch.Tensor) -> None:
        """The input is what it was before."""
        for at in range(0, x.numel(), CHUNK):
            given = self._given(rank, at, min(at + CHUNK, x.numel()), x.device)
            _require(bits_of(x[at : at + CHUNK]) == bits_of(given), x, given, f"rank {rank}, {self}, its input", at)

    def __str__(self) -> str:
        of = f" with {self.op}" if self.name in REDUCTIONS else ""
        of += f" with root {self.root}" if self.name in ROOTED else ""
        return f"{self.name}{of} of {self.numel} x {str(self.dtype)[6:]} on ranks {self.members}"

    def _origins(self, rank: int) -> Iterator[tuple[int | None, int, int]]:
        """The origin of the output, piece by piece: the sender, None for all; position in its input; length."""
        index, numel = self.members.index(rank), self.numel
        match self.name:
            case "all_reduce" | "reduce":
                yield None, 0, numel
            case "reduce_scatter":
                yield None, index * numel, numel
            case "reduce_scatter_then_all_gather":
                yield None, 0, numel * len(self.members)
            case "all_gather" | "gather":
                yield from ((member, 0, numel) for member in self.members)
            case "broadcast":
                yield self.root, 0, numel
            case "scatter":
                yield self.root, index * numel, numel
            case "send_recv":
                yield self.members[index - 1], 0, numel
            case "all_to_all":
                yield from ((member, index * numel, numel) for member in self.members)
            case "all_to_all_uneven":
                for member, row in zip(self.members, self.splits, strict=True):
                    yield member, sum(row[:index]), row[index]
            case _:
                raise ValueError(f"no collective is called {self.name!r}")

    def _given(self, rank: int, start: int, stop: int, device: torch.device) -> torch.Tensor:
        """What the rank starts with from one position to another."""
        if self.name in REDUCTIONS:
            return self._addend(rank, start, stop, device).to(self.dtype)
        # What only moves keeps every bit, those of NaN too.
        bits = random_bits(start, stop, stream=self.seed * 1024 + rank, device=device)
        return bits.to(OF_SIZE[self.dtype.itemsize]).view(self.dtype)

    def _addend(self, rank: int, start: int, stop: int, device: torch.device) -> torch.Tensor:
        """A rank's part of a reduction: whole numbers times a power of two in float64, or in int64."""
        bits = random_bits(start, stop, stream=self.seed * 1024 + rank, device=device)
        if self.op == "band":
            return bits | bits >> 17  # bits that are mostly set: some are left on many ranks
        size, index = len(self.members), self.members.index(rank)
        floating = self.dtype.is_floating_point
        counts_to = round(2 / torch.finfo(self.dtype).eps) if floating else torch.iinfo(self.dtype).max
        addends = {"sum": size, "avg": size, "premul_sum": size * FACTOR, "product": 2}.get(self.op, 1)
        whole = odd_numbers(bits, counts_to // addends // 2)
        if self.op == "product":  # one factor of full width, one of 2, and signs
            turn = (torch.arange(start, stop, device=device) + self.seed + index) % size
            whole = torch.where(turn == 0, whole, whole.sign() * torch.where(turn == 1, 2, 1))
        if not floating:
            return whole
        # Each row of the three scales is 7 long, so that neighbours and blocks have others.
        exponents = [_EXPONENTS[self.dtype][(place // 7 + self.seed) % 3] for place in range(21)]
        scales = torch.tensor([2.0**exponent for exponent in exponents], dtype=torch.float64, device=device)
        first, numel = start % 21, stop - start
        scaled = whole.double().mul_(scales.repeat((first + numel) // 21 + 1)[first : first + numel])
        if self.op == "product":
            scaled = torch.where(turn == 0, scaled, whole.double())
        if not self.extremes:
            return scaled
        return self._with_extremes(scaled, torch.arange(start, stop, device=device), index)

    def _with_extremes(self, values: torch.Tensor, at: torch.Tensor, index: int) -> torch.Tensor:
        kind, turn = at % _EVERY, (at // _EVERY + index) % len(self.members)
        largest = torch.finfo(self.dtype).max
        sums = self.op in ("sum", "avg", "product")
        # What stands for all members, or for two of them that take turns.
        extremes = [(1, 0, torch.inf), (2, 0, -torch.inf)]
        if sums:
            extremes += [(0, 0, torch.nan)]
        if self.op == "sum":
            extremes += [(3, 0, torch.inf), (3, 1, -torch.inf), *((4, member, largest) for member in range(8))]
        for which, member, value in extremes:
            values = torch.where((kind == which) & (turn == member), value, values)
        return values

    def _reduced(self, start: int, stop: int, device: torch.device) -> torch.Tensor:
        """The reduction of all members' parts, before it is rounded."""
        total = self._addend(self.members[0], start, stop, device)
        for member in self.members[1:]:
            other = self._addend(member, start, stop, device)
            match self.op:
                case "min":
                    total = torch.minimum(total, other)
                case "max":
                    total = torch.maximum(total, other)
                case "product":
                    total = total * other
                case "band":
                    total = total & other
                case _:
                    total = total + other
        return total * FACTOR if self.op == "premul_sum" else total

    def _compare(
        self, got: torch.Tensor, sender: int | None, start: int, stop: int, steps: int, where: str, at: int
    ) -> None:
        device, size = got.device, len(self.members)
        if sender is not None:
            expected = self._given(sender, start, stop, device)
            _require(bits_of(got) == bits_of(expected), got, expected, where, at)
            return
        total = self._reduced(start, stop, device)
        if self.name == "all_reduce" and self.op == "sum" and steps > 1:  # in place
            self._require_repeated(got, total, steps - 1, where, at)
            return
        expected = total.to(self.dtype)
        if self.op == "avg":
            expected = expected / size
            if device.type == "cuda" and size & (size - 1):
                self._require_near(got, total / size, start, where, at)
                return
        same = got == expected
        if self.dtype.is_floating_point:
            same |= got.isnan() & expected.isnan()
        _require(same, got, expected, where, at)

    def _require_repeated(self, got: torch.Tensor, total: torch.Tensor, times: int, where: str, at: int) -> None:
        """Each step has summed what the one before left on every rank; the sum of two equal ones alone is exact."""
        low, high = repeated(total, ranks=len(self.members), times=times, dtype=self.dtype)
        _require((got >= low) & (got <= high), got, total, where, at)

    def _require_near(self, got: torch.Tensor, mean: torch.Tensor, start: int, where: str, at: int) -> None:
        """NCCL multiplies by 1/R, which is rounded, and rounds each product and each sum."""
        device, eps = got.device, torch.finfo(self.dtype).eps
        stop = start + got.numel()
        magnitude = sum(self._addend(member, start, stop, device).abs() for member in self.members)
        near = (got.double() - mean).abs() <= eps * magnitude  # (R + 1) / 2 of them, each of |x| / R, and R >= 1
        near |= (got.double() == mean) | (got.isnan() & mean.isnan())
        _require(near, got, mean, where, at)


def _require(same: torch.Tensor, got: torch.Tensor, expected: torch.Tensor, where: str, at: int) -> None:
    if bool(same.all()):
        return
    wrong = int((~same).sum())
    first = int(same.logical_not().to(torch.uint8).argmax())
    told = _WRONG.format(at + first, at + len(same), got[first].item(), expected[first].item(), wrong, len(same))
    raise AssertionError(f"{where}: {told}")


class NeverRight(Collective):
    """A collective without a right result: whoever checks results has to report it."""

    def assert_right(self, rank: int, output: torch.Tensor | None, *, steps: int = 1) -> None:
        """Finds the result wrong, whatever it is.

        Raises:
            AssertionError: always.
        """
        raise AssertionError("not right")


class NeverUntouched(Collective):
    """A collective whose input always counts as changed: whoever checks inputs has to report it."""

    def assert_untouched(self, rank: int, x: torch.Tensor) -> None:
        """Finds the input changed, whatever it holds.

        Raises:
            AssertionError: always.
        """
        raise AssertionError("touched")
