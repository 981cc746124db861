"""Faults of the subject memory_hierarchy."""

from __future__ import annotations

from benchmarks.mutants.fault import Fault

PROGRAMS = "suites.memory_hierarchy.programs"

FAULTS: tuple[Fault, ...] = (
    Fault(
        name="a copy that leaves out the last element",
        module=PROGRAMS,
        old="return lambda: there.copy_(here, non_blocking=True)",
        new="return lambda: (there[:-1].copy_(here[:-1], non_blocking=True), there)[1]",
    ),
    Fault(
        name="a copy whose size is counted in elements of 8 bytes",
        module=PROGRAMS,
        old="here, there = (tensor[: nbytes // DTYPE.itemsize]",
        new="here, there = (tensor[: max(1, nbytes // 8)]",
    ),
    Fault(
        name="every size copies the largest one's bytes",
        module=PROGRAMS,
        old="here, there = (tensor[: nbytes // DTYPE.itemsize]",
        new="here, there = (tensor[:]",
    ),
    Fault(
        name="a sum that skips the tail of a block of 1024",
        module=PROGRAMS,
        old="part = source[: nbytes // DTYPE.itemsize]\n        return lambda: torch.sum",
        new="part = source[: max(1, nbytes // DTYPE.itemsize // 1024 * 1024)]\n        return lambda: torch.sum",
    ),
    Fault(
        name="a sum of every second element",
        module=PROGRAMS,
        old="return lambda: torch.sum(part, dim=0, out=total)",
        new="return lambda: torch.sum(part[::2], dim=0, out=total)",
    ),
    Fault(
        name="a write of half of the elements",
        module=PROGRAMS,
        old="return lambda: part.fill_(WRITTEN)",
        new="return lambda: (part[: part.numel() // 2].fill_(WRITTEN), part)[1]",
    ),
    Fault(
        name="a triad that reads one array twice",
        module=PROGRAMS,
        old="torch.add(of_b, of_c,",
        new="torch.add(of_b, of_b,",
    ),
    Fault(
        name="a triad without its factor",
        module=PROGRAMS,
        old="alpha=TRIAD_FACTOR, out=of_a",
        new="alpha=1.0, out=of_a",
    ),
    Fault(
        name="both ways, and one of them brings back what it sent",
        module=PROGRAMS,
        old="return down_to[:count], up_to[:count]",
        new="return down_to[:count], down_from[: sizes[0]]",
    ),
    Fault(
        name="both ways, and the way up is left out",
        module=PROGRAMS,
        old="up_to[:count].copy_(up_from[:count])\n",
        new="pass\n",
    ),
    Fault(
        name="all ranks send rank 0's values",
        module=PROGRAMS,
        old="source = values(_count(sizes), rank=ctx.rank, device=from_)",
        new="source = values(_count(sizes), rank=0, device=from_)",
    ),
    Fault(
        name="the host's copy is of one byte in two",
        module=PROGRAMS,
        old="        destination.copy_(source)\n",
        new="        destination[::2].copy_(source[::2])\n",
    ),
    Fault(
        name="sources hold the same values on all ranks",
        module="suites.memory_hierarchy.programs",
        old="torch.arange(rank + shift, rank + shift + count, dtype",
        new="torch.arange(shift, shift + count, dtype",
    ),
    Fault(
        name="the destination of copies is not zeroed: the last size's bytes pass for new ones",
        module="suites.memory_hierarchy.programs",
        old="for tensor in (source, destination.zero_()))",
        new="for tensor in (source, destination))",
        equivalent="the copies leave the same bytes: only a later size that copies nothing would be seen less",
    ),
    Fault(
        name="the first copy on the host timed, and the last not",
        module="suites.memory_hierarchy.programs",
        old="return seconds[1:], destination",
        new="return seconds[:-1], destination",
    ),
    Fault(
        name="the first copy of the host is counted",
        module="suites.memory_hierarchy.programs",
        old="return seconds[1:], destination",
        new="return seconds, destination",
    ),
    Fault(
        name="a triad whose result is read before it is written",
        module="suites.memory_hierarchy.programs",
        old='"copied": 2, "triad": 3',
        new='"copied": 2, "triad": 4',
    ),
    Fault(
        name="a copy whose bytes count once",
        module="suites.memory_hierarchy.programs",
        old='"copied": 2, "triad": 3',
        new='"copied": 1, "triad": 3',
    ),
    Fault(
        name="a triad by way of two tensors in between",
        module="suites.memory_hierarchy.programs",
        old="return lambda: torch.add(of_b, of_c, alpha=TRIAD_FACTOR, out=of_a)",
        new="return lambda: of_a.copy_(of_b + TRIAD_FACTOR * of_c)",
    ),
    Fault(
        name="a copy of a copy",
        module="suites.memory_hierarchy.programs",
        old="return lambda: there.copy_(here, non_blocking=True)",
        new="return lambda: there.copy_(here.clone(), non_blocking=True)",
    ),
    Fault(
        name="pieces of a copy that are all compared with the first one's values",
        module="suites.memory_hierarchy.reference",
        old="place = torch.arange(begin, begin + part.numel(), dtype",
        new="place = torch.arange(part.numel(), dtype",
    ),
    Fault(
        name="a copy of which the first piece alone is compared",
        module="suites.memory_hierarchy.reference",
        old="part = output[begin : begin + CHUNK]",
        new="part = output[:CHUNK][: count - begin]",
    ),
    Fault(
        name="a size that begins with what the one before has copied",
        module="suites.memory_hierarchy.programs",
        old="(source, destination.zero_())",
        new="(source, destination)",
    ),
    Fault(
        name="a sum that goes on from the last step's",
        module=PROGRAMS,
        old="        return lambda: torch.sum(part, dim=0, out=total)\n",
        new="        return lambda: total.add_(part.sum(0))\n",
    ),
    Fault(
        name="sources that are alike on all ranks",
        module=PROGRAMS,
        old="places = torch.arange(rank + shift, rank + shift + count, dtype",
        new="places = torch.arange(shift, shift + count, dtype",
    ),
    Fault(
        name="the first host copy counted and the last one left out",
        module=PROGRAMS,
        old="    return seconds[1:], destination",
        new="    return seconds[:samples], destination",
    ),
    Fault(
        name="the triad scales the other array",
        module=PROGRAMS,
        old="torch.add(of_b, of_c, alpha=TRIAD_FACTOR, out=of_a)",
        new="torch.add(of_c, of_b, alpha=TRIAD_FACTOR, out=of_a)",
    ),
)
