"""Faults of the subject nvlink."""

from __future__ import annotations

from benchmarks.mutants.fault import Fault

PROGRAMS = "suites.nvlink.programs.copies"
PATHS = "suites.nvlink.programs.paths"
ORDERS = "suites.nvlink.programs.orders"

FAULTS: tuple[Fault, ...] = (
    Fault(
        name="a ring copy that loses the last element",
        module=PROGRAMS,
        old="return destination.copy_(source, non_blocking=True)",
        new="destination[:-1].copy_(source[:-1], non_blocking=True)\n        return destination",
    ),
    Fault(
        name="a ring copy that loses what lies past element 65536",
        module=PROGRAMS,
        old="return destination.copy_(source, non_blocking=True)",
        new="destination[:65536].copy_(source[:65536], non_blocking=True)\n        return destination",
    ),
    Fault(
        name="a ring copy that sends what it sent at first",
        module=PROGRAMS,
        old="""    source, destination = _ends(ctx, shape, dtype, seed, source)

    def step() -> torch.Tensor:
        # On""",
        new="""    source, destination = _ends(ctx, shape, dtype, seed, source)
    kept = []

    def step() -> torch.Tensor:
        nonlocal source
        kept.append(source.clone())
        source = kept[0]
        # On""",
    ),
    Fault(
        name="a block of a copy in the place of another",
        module=PROGRAMS,
        old="return destination.copy_(source, non_blocking=True)",
        new="return destination.copy_(source.view(-1).roll(4096), non_blocking=True)",
    ),
    Fault(
        name="copies to all of which the last is left out",
        module=PROGRAMS,
        old="    for destination in destinations.values():\n",
        new="    for destination in list(destinations.values())[:-1]:\n",
    ),
    Fault(
        name="chunks that overlap by one element",
        module=PROGRAMS,
        old="tensor.view(-1).split(per_chunk) for tensor in tensors",
        new="[flat[at : at + per_chunk + 1] for at in range(0, len(flat), per_chunk)] for flat in tensors",
    ),
    Fault(
        name="chunks without the part of one at the end",
        module=PROGRAMS,
        old="tensor.view(-1).split(per_chunk) for tensor in tensors",
        new="tensor.view(-1)[: max(tensor.numel() // per_chunk, 1) * per_chunk].split(per_chunk) for tensor in tensors",
    ),
    Fault(
        name="all ranks send the same",
        module=PROGRAMS,
        old="fill_with_bits(tensor, stream=seed * 64 + rank)",
        new="fill_with_bits(tensor, stream=seed * 64 + 1)",
    ),
    Fault(
        name="a pair's bandwidth that is its best sample",
        module=PROGRAMS,
        old="return statistics.median(self.samples)",
        new="return max(self.samples)",
    ),
    Fault(
        name="a pair's bandwidth that is its mean",
        module=PROGRAMS,
        old="return statistics.median(self.samples)",
        new="return statistics.fmean(self.samples)",
    ),
    Fault(
        name="sender and receiver the other way round",
        module=PROGRAMS,
        old="Hop(sender, receiver, tuple(samples))",
        new="Hop(receiver, sender, tuple(samples))",
    ),
    Fault(
        name="pairs of which one direction counts",
        module=PROGRAMS,
        old="            if samples:\n",
        new="            if samples and sender < receiver:\n",
    ),
    Fault(
        name="hops that are not sorted",
        module=PROGRAMS,
        old="return sorted(found, key=lambda hop: hop.bandwidth)",
        new="return found",
    ),
    Fault(
        name="a pair at the floor that counts as slow",
        module=PROGRAMS,
        old="if hop.bandwidth < floor]",
        new="if hop.bandwidth <= floor]",
    ),
    Fault(
        name="a hop's bandwidth is the mean of its samples, not the median",
        module="suites.nvlink.programs.copies",
        old="statistics.median(self.samples)",
        new="statistics.fmean(self.samples)",
    ),
    Fault(
        name="equal chunks instead of chunks of so many bytes: some become larger",
        module="suites.nvlink.programs.copies",
        old=(
            "    per_chunk = nbytes // tensors[0].dtype.itemsize\n"
            "    return list(zip(*(tensor.view(-1).split(per_chunk) for tensor in tensors), strict=True))\n"
        ),
        new=(
            "    number = max(1, tensors[0].nbytes // nbytes)\n"
            "    return list(zip(*(tensor.view(-1).chunk(number) for tensor in tensors), strict=True))\n"
        ),
    ),
    Fault(
        name="a read of what the rank has itself",
        module=PATHS,
        old='fill_sent(source, rank=ctx.rank if access == "write" else partner(ctx), seed=nbytes)',
        new="fill_sent(source, rank=ctx.rank, seed=nbytes)",
    ),
    Fault(
        name="all ranks copy though one is to be alone",
        module=PATHS,
        old="if alone and ctx.rank != 0:",
        new="if alone and ctx.rank < 0:",
    ),
    Fault(
        name="copies are timed that do not write",
        module=PATHS,
        old="    destination.copy_(source)\n",
        new="    destination.copy_(destination)\n",
    ),
    Fault(
        name="a partner that is the next rank, not the one in the other half",
        module=PATHS,
        old="return (ctx.rank + ctx.world_size // 2) % ctx.world_size",
        new="return (ctx.rank + 1) % ctx.world_size",
    ),
    Fault(
        name="an order of a ring that is not closed",
        module=ORDERS,
        old="(*order[1:], order[0])",
        new="(*order[1:], order[1])",
    ),
    Fault(
        name="a best order by the sum of its hops alone",
        module=ORDERS,
        old="return min(rates), sum(rates)",
        new="return sum(rates), min(rates)",
    ),
    Fault(
        name="a ring in the order of ranks, whatever was asked for",
        module=ORDERS,
        old="return order[(order.index(rank) + 1) % len(order)]",
        new="return (rank + 1) % len(order)",
    ),
    Fault(
        name="a ring judged without the hop that closes it",
        module="suites.nvlink.programs.orders",
        old="rates = [rate[pair] for pair in zip(order, (*order[1:], order[0]), strict=True)]",
        new="rates = [rate[pair] for pair in zip(order, order[1:], strict=False)]",
    ),
    Fault(
        name="a rate of one copy in the time of all",
        module="suites.nvlink.programs.paths",
        old="found.append(copies * nbytes / _seconds(",
        new="found.append(nbytes / _seconds(",
    ),
    Fault(
        name="a rate of all copies in the time of one",
        module="suites.nvlink.programs.paths",
        old=(
            "        began = time.perf_counter()\n"
            "        for _ in range(copies):\n"
            "            copy()\n"
            "        return time.perf_counter() - began"
        ),
        new=(
            "        for _ in range(copies - 1):\n"
            "            copy()\n"
            "        began = time.perf_counter()\n"
            "        copy()\n"
            "        return time.perf_counter() - began"
        ),
    ),
    Fault(
        name="bytes of a ring in some order that are not wiped between steps",
        module="suites.nvlink.programs.orders",
        old="    destination.zero_()  # a later step must write it anew\n",
        new="",
    ),
    Fault(
        name="bytes over a link that are not wiped before they are timed",
        module="suites.nvlink.programs.paths",
        old="    destination.zero_()  # what is timed has to write it anew\n",
        new="",
    ),
    Fault(
        name="a second step of a ring with the bytes of the first",
        module="suites.nvlink.programs.copies",
        old="for sown in (seed, seed + 1):",
        new="for sown in (seed, seed):",
    ),
    Fault(
        name="bytes of both directions if all copy at once",
        module="suites.nvlink.programs.paths",
        old="found.append(copies * nbytes / _seconds(",
        new="found.append((1 if alone else 2) * copies * nbytes / _seconds(",
    ),
    Fault(
        name="chunks of so many elements instead of bytes",
        module=PROGRAMS,
        old="    per_chunk = nbytes // tensors[0].dtype.itemsize\n",
        new="    per_chunk = nbytes\n",
    ),
    Fault(
        name="an order of a ring judged without the hop back",
        module=ORDERS,
        old="zip(order, (*order[1:], order[0]), strict=True)]",
        new="zip(order, order[1:], strict=False)]",
    ),
    Fault(
        name="a copy that is not counted is timed on CPUs",
        module=PATHS,
        old=("        began = time.perf_counter()\n        for _ in range(copies):\n            copy()\n"),
        new=(
            "        began = time.perf_counter()\n"
            "        copy()  # the first one wakes the link\n"
            "        for _ in range(copies):\n"
            "            copy()\n"
        ),
    ),
    Fault(
        name="bandwidth of a CPU's copies counted twice",
        module=PATHS,
        old=("            copy()\n        return time.perf_counter() - began\n"),
        new=("            copy()\n        return (time.perf_counter() - began) / copies\n"),
    ),
    Fault(
        name="a ring's order without its closing hop",
        module=ORDERS,
        old="zip(order, (*order[1:], order[0]), strict=True)",
        new="itertools.pairwise(order)",
    ),
)
