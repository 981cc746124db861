"""Faults of the subject symmetric_memory."""

from __future__ import annotations

from benchmarks.mutants.fault import Fault

ARENA, CACHE, EXCHANGES, HEAP, ONE_SIDED, OPERATIONS, PAGES, SHARDS, SWEEPING = (
    f"suites.symmetric_memory.programs.{name}"
    for name in (
        "arena",
        "kv_cache",
        "exchanges",
        "heap",
        "one_sided",
        "operations",
        "pages",
        "optimizer_shards",
        "sweeping",
    )
)
MEMORY = "suites.shared.peer_memory"
RING = "suites.shared.ring"
IN_TURN = "suites.symmetric_memory.programs.shards_in_turn"

FAULTS: tuple[Fault, ...] = (
    # Barriers: every one of every program that CPUs run.
    Fault(
        name="a put that does not wait until the last one was read",
        module=OPERATIONS,
        old="        memory.barrier()  # what came at the last step has been read\n",
        new="",
    ),
    Fault(
        name="a put that is read before it has arrived",
        module=OPERATIONS,
        old="        there.copy_(next(turns))\n        memory.barrier()\n",
        new="        there.copy_(next(turns))\n",
    ),
    Fault(
        name="a get before the peer has written",
        module=OPERATIONS,
        old="        memory.barrier()\n        out = there.clone()\n",
        new="        out = there.clone()\n",
    ),
    Fault(
        name="a buffer that is written again before a get has read it",
        module=OPERATIONS,
        old="        memory.barrier()  # all have read, before anybody writes the next one\n",
        new="",
    ),
    Fault(
        name="a sum of buffers that are not written yet",
        module=OPERATIONS,
        old="        memory.barrier()\n        out = torch.zeros(shape",
        new="        out = torch.zeros(shape",
    ),
    Fault(
        name="a buffer that changes while others add it up",
        module=OPERATIONS,
        old="        memory.barrier()  # nobody's buffer changes or goes while others read it\n",
        new="",
    ),
    Fault(
        name="gradients that are read before all ranks have theirs",
        module=SHARDS,
        old="            memory.barrier()\n            mine.grad",
        new="            mine.grad",
    ),
    Fault(
        name="weights that are returned, and gradients overwritten, before all have written",
        module=SHARDS,
        old="                part(rank, weights_at).copy_(mine.detach())\n            memory.barrier()\n",
        new="                part(rank, weights_at).copy_(mine.detach())\n",
    ),
    Fault(
        name="a cache that is read before its owner has appended",
        module=CACHE,
        old="            cache.barrier()\n            found.append",
        new="            found.append",
    ),
    Fault(
        name="pages that are freed and written again while a peer reads them",
        module=CACHE,
        old="            cache.barrier()  # all have read, before anybody frees or appends again\n",
        new="",
    ),
    # Sums and copies.
    Fault(
        name="a sum that leaves out the next rank",
        module=OPERATIONS,
        old="        for rank in range(ctx.world_size):\n            out += ",
        new="        for rank in (r for r in range(ctx.world_size) if r != (ctx.rank + 1) % ctx.world_size):\n"
        "            out += ",
    ),
    Fault(
        name="a sum in bfloat16",
        module=OPERATIONS,
        old="out = torch.zeros(shape, dtype=dtype, device=ctx.device)",
        new="out = torch.zeros(shape, dtype=torch.bfloat16, device=ctx.device)",
    ),
    Fault(
        name="a sum whose addends go through float16",
        module=OPERATIONS,
        old="out += memory.buffer(rank, shape, dtype)",
        new="out += memory.buffer(rank, shape, dtype).half()",
    ),
    Fault(
        name="a put to the rank itself",
        module=OPERATIONS,
        old="there = memory.buffer((ctx.rank + distance) % ctx.world_size, shape, dtype, offset)",
        new="there = memory.buffer(ctx.rank, shape, dtype, offset)",
    ),
    Fault(
        name="a put to the rank before",
        module=OPERATIONS,
        old="there = memory.buffer((ctx.rank + distance) % ctx.world_size, shape, dtype, offset)",
        new="there = memory.buffer((ctx.rank - distance) % ctx.world_size, shape, dtype, offset)",
    ),
    Fault(
        name="a get from the rank behind",
        module=OPERATIONS,
        old="there = memory.buffer((ctx.rank - distance) % ctx.world_size, shape, dtype, offset)",
        new="there = memory.buffer((ctx.rank + distance) % ctx.world_size, shape, dtype, offset)",
    ),
    Fault(
        name="a put of the first step's tensor, always",
        module=OPERATIONS,
        old="""        there.copy_(next(turns))
        memory.barrier()
        return here.clone()""",
        new="""        there.copy_(next(in_turn(ctx, shape=shape, dtype=dtype, seed=seed)))
        memory.barrier()
        return here.clone()""",
    ),
    Fault(
        name="a get whose buffer is filled at the first step alone",
        module=OPERATIONS,
        old="    def step() -> torch.Tensor:\n        here.copy_(next(turns))\n",
        new="    here.copy_(next(turns))\n\n    def step() -> torch.Tensor:\n",
    ),
    Fault(
        name="a put that is cut at 65536 elements",
        module=OPERATIONS,
        old="        there.copy_(next(turns))\n        memory.barrier()\n",
        new="        there.view(-1)[:65536].copy_(next(turns).view(-1)[:65536])\n        memory.barrier()\n",
    ),
    Fault(
        name="a matmul that is reduced in bfloat16",
        module=OPERATIONS,
        old="dist.reduce_scatter_tensor(out, a @ b)",
        new="half = out.bfloat16()\n        dist.reduce_scatter_tensor(half, (a @ b).bfloat16())\n"
        "        out.copy_(half)",
    ),
    Fault(
        name="a matmul's rows that belong to the rank's mirror image",
        module=OPERATIONS,
        old="dist.reduce_scatter_tensor(out, a @ b)",
        new="dist.reduce_scatter_tensor(out, torch.cat((a @ b).chunk(ctx.world_size)[::-1]))",
    ),
    # The optimizer.
    Fault(
        name="a part of the weights that sees its own rank's gradient alone",
        module=SHARDS,
        old="torch.stack([part(rank, gradients_at) for rank in range(ctx.world_size)]).mean(dim=0)",
        new="part(ctx.rank, gradients_at).clone()",
    ),
    Fault(
        name="a sum of gradients for their mean",
        module=SHARDS,
        old="for rank in range(ctx.world_size)]).mean(dim=0)",
        new="for rank in range(ctx.world_size)]).sum(dim=0)",
    ),
    Fault(
        name="a mean of gradients in float32",
        module=SHARDS,
        old="for rank in range(ctx.world_size)]).mean(dim=0)",
        new="for rank in range(ctx.world_size)]).float().mean(dim=0).double()",
    ),
    Fault(
        name="weights that reach all ranks but the last",
        module=SHARDS,
        old="            for rank in range(ctx.world_size):\n                part(rank, weights_at)",
        new="            for rank in {ctx.rank, *range(ctx.world_size - 1)}:\n                part(rank, weights_at)",
    ),
    Fault(
        name="momenta that are forgotten at each step",
        module=SHARDS,
        old="            optimizer.step()\n",
        new="            optimizer.state.clear()\n            optimizer.step()\n",
    ),
    Fault(
        name="an optimizer whose state every rank keeps whole",
        module=SHARDS,
        old="    each = -(-numel // ctx.world_size)\n    start = min(ctx.rank * each, numel)\n"
        "    return start, min(each, numel - start)",
        new="    return 0, numel",
    ),
    # The cache and its arena.
    Fault(
        name="a cache that is read by the reader's own tables",
        module=CACHE,
        old="            length, table = self._table(rank, sequence)\n",
        new="            length, table = self._table(rank, sequence)[0], self._table(self._rank, sequence)[1]\n"
        "            table = table or self._table(rank, sequence)[1]\n",
    ),
    Fault(
        name="a last page that is read to its end",
        module=CACHE,
        old="torch.cat(pages, dim=1)[:, :length].clone()",
        new="torch.cat(pages, dim=1).clone()",
    ),
    Fault(
        name="tokens that begin a page anew at each append",
        module=CACHE,
        old="            page, slot = divmod(at, self._page_tokens)\n",
        new="            page, slot = divmod(at, self._page_tokens)\n            slot = slot if at > length else 0\n",
    ),
    Fault(
        name="pages that a refused append keeps",
        module=CACHE,
        old="            for offset in taken:\n                self._arena.free(offset)\n            raise",
        new="            raise",
    ),
    Fault(
        name="a freed sequence whose first page stays taken",
        module=CACHE,
        old="        for offset in table:\n            self._arena.free(offset)\n        self._tables",
        new="        for offset in table[1:]:\n            self._arena.free(offset)\n        self._tables",
    ),
    Fault(
        name="values that are keys",
        module=CACHE,
        old="= tokens[:, at - length : at - length + count]",
        new="= tokens[:1, at - length : at - length + count]",
    ),
    Fault(
        name="a cache in bfloat16",
        module=CACHE,
        old="cache.append(sequence, tokens.to(ctx.device))",
        new="cache.append(sequence, tokens.bfloat16().float().to(ctx.device))",
    ),
    Fault(
        name="an arena that never joins what is free",
        module=ARENA,
        old="            if last in merged and last + merged[last] == start:",
        new="            if False:",
    ),
    Fault(
        name="an arena that rounds sizes down",
        module=ARENA,
        old="wanted = math.ceil(nbytes / ALIGNMENT) * ALIGNMENT",
        new="wanted = max(1, nbytes // ALIGNMENT) * ALIGNMENT",
    ),
    Fault(
        name="memory in which each rank maps its own file alone",
        module=MEMORY,
        old="return view(self._bytes[rank], shape, dtype, offset)",
        new="return view(self._bytes[dist.get_rank()], shape, dtype, offset)",
    ),
    Fault(
        name="an offset that is counted in bytes",
        module=MEMORY,
        old="start, nbytes = offset * dtype.itemsize, math.prod(shape) * dtype.itemsize",
        new="start, nbytes = offset // dtype.itemsize * dtype.itemsize, math.prod(shape) * dtype.itemsize",
    ),
    Fault(
        name="a heap whose size is a power of ten",
        module=HEAP,
        old='_SUFFIXES = {"k": KiB, "m": MiB,',
        new='_SUFFIXES = {"k": KiB, "m": 10**6,',
    ),
    Fault(
        name="a piece that fits exactly is not used",
        module="suites.symmetric_memory.programs.arena",
        old="if size >= wanted:",
        new="if size > wanted:",
    ),
    Fault(
        name="a sum by gets that leaves out the last rank",
        module=SWEEPING,
        old="        ordered = [(ctx.rank + away) % ctx.world_size for away in range(ctx.world_size)]\n",
        new="        ordered = [(ctx.rank + away) % (ctx.world_size - 1) for away in range(ctx.world_size)]\n",
    ),
    Fault(
        name="a sum by gets that goes on with the last step's sum",
        module=SWEEPING,
        old="            out.copy_(parts[0])\n",
        new="            out.add_(parts[0])\n",
    ),
    Fault(
        name="a ring by puts without the barrier after the copy",
        module=SWEEPING,
        old="            move(there, sent)\n            memory.barrier()\n",
        new="            move(there, sent)\n",
    ),
    Fault(
        name="a sum by gets that does not wait for the tensors",
        module=SWEEPING,
        old="            memory.barrier()  # all tensors are there\n",
        new="",
    ),
    Fault(
        name="a ring by gets that does not wait for what it reads",
        module=SWEEPING,
        old="            memory.barrier()  # it is there\n",
        new="",
    ),
    Fault(
        name="pages by gets that nobody waits for",
        module=PAGES,
        old="        memory.barrier()  # they are there\n",
        new="",
    ),
    Fault(
        name="pages by puts without the barrier after the copy",
        module=PAGES,
        old="        there.index_copy_(0, index, cache[index])\n        memory.barrier()\n",
        new="        there.index_copy_(0, index, cache[index])\n",
    ),
    Fault(
        name="a ring whose rank before is the one after",
        module=RING,
        old="    return (ctx.rank + 1) % ctx.world_size, (ctx.rank - 1) % ctx.world_size\n",
        new="    return (ctx.rank + 1) % ctx.world_size, (ctx.rank + 1) % ctx.world_size\n",
    ),
    Fault(
        name="messages that end at 64 KiB",
        module=RING,
        old="        sent, received = source[:nbytes], destination[:nbytes].zero_()\n",
        new="        sent, received = source[: min(nbytes, 65_536)], destination[:nbytes].zero_()[:65_536]\n",
    ),
    Fault(
        name="a sum in place that a larger size finds done",
        module=SWEEPING,
        old="        x = _filled(ctx, nbytes)\n",
        new="        x = _filled(ctx, nbytes) if nbytes == sizes[0] else _filled(ctx, nbytes).fill_(1)\n",
    ),
    Fault(
        name="pages that are scattered in the order of their numbers",
        module=PAGES,
        old="        return arrived.index_copy_(0, index, incoming)\n",
        new="        return arrived.index_copy_(0, index.sort().values, incoming)\n",
    ),
    Fault(
        name="pages by puts that land where others were",
        module=PAGES,
        old="        there.index_copy_(0, index, cache[index])\n",
        new="        there.index_copy_(0, index, cache[: len(index)])\n",
    ),
    Fault(
        name="pages by gets, and one page more than was asked for",
        module=PAGES,
        old="        arrived.index_copy_(0, index, torch.index_select(there, 0, index))\n",
        new="        arrived.index_copy_(0, index, torch.index_select(there, 0, index))\n"
        "        arrived[-1] = there[-1]\n",
    ),
    Fault(
        name="barrier between reading gradients and writing weights, none after writing",
        module="suites.symmetric_memory.programs.optimizer_shards",
        old=(
            "            for rank in range(ctx.world_size):\n"
            "                part(rank, weights_at).copy_(mine.detach())\n"
            "            memory.barrier()\n"
        ),
        new=(
            "            memory.barrier()\n"
            "            for rank in range(ctx.world_size):\n"
            "                part(rank, weights_at).copy_(mine.detach())\n"
        ),
    ),
    Fault(
        name="pages that a refused append had already taken are never given back",
        module="suites.symmetric_memory.programs.kv_cache",
        old=("            for offset in taken:\n                self._arena.free(offset)\n            raise\n"),
        new="            raise\n",
    ),
    Fault(
        name="a freed piece is joined with one neighbour only, not with both",
        module="suites.symmetric_memory.programs.arena",
        old=("            else:\n                last = start\n                merged[last] = size\n"),
        new=("            else:\n                merged[start] = size\n            last = start\n"),
    ),
    Fault(
        name="shards by memory whose sum leaves out the last rank",
        module=IN_TURN,
        old="        for source in sources[1:]:\n",
        new="        for source in sources[1:-1]:\n",
    ),
    Fault(
        name="shards by memory whose weights reach all ranks but one",
        module=IN_TURN,
        old="        for target in targets:\n",
        new="        for target in targets[: max(1, len(targets) - 1)]:\n",
    ),
    Fault(
        name="shards by memory that do not wait for the parts",
        module=IN_TURN,
        old="non_blocking=True)\n        memory.barrier()  # all parts are there\n",
        new="non_blocking=True)\n",
    ),
    Fault(
        name="shards whose gradients are summed, and no mean is taken",
        module=IN_TURN,
        old="        self.weights.grad = summed.div_(self._ranks)\n",
        new="        self.weights.grad = summed\n",
    ),
    Fault(
        name="shards by NCCL that gather the weights before the update",
        module=IN_TURN,
        old="        part.update(summed)\n        dist.all_gather_into_tensor(weights, part.weights.detach())\n",
        new="        dist.all_gather_into_tensor(weights, part.weights.detach())\n        part.update(summed)\n",
    ),
    Fault(
        name="shards whose momentum is lost at each step",
        module=IN_TURN,
        old="        self._optimizer.step()\n",
        new="        self._optimizer.state.clear()\n        self._optimizer.step()\n",
    ),
    # Exchanges through NVSHMEM's heap.
    Fault(
        name="activations that are sent before the last ones were read",
        module=EXCHANGES,
        old="                memory.wait(READ, ctx.rank + 1)\n",
        new="",
    ),
    Fault(
        name="activations that are read before they have come",
        module=EXCHANGES,
        old="            if ctx.rank:\n                memory.wait(ARRIVED, ctx.rank - 1)\n",
        new="",
    ),
    Fault(
        name="a place that is never called free",
        module=EXCHANGES,
        old="            if ctx.rank:\n                memory.signal(ctx.rank - 1, READ)\n            if not",
        new="            if not",
    ),
    Fault(
        name="activations that come in where the stage sends from",
        module=EXCHANGES,
        old="places[1 - ctx.rank % 2]",
        new="places[ctx.rank % 2]",
    ),
    Fault(
        name="stages that all send from the first place",
        module=EXCHANGES,
        old="sent, received = places[ctx.rank % 2], places[1 - ctx.rank % 2]",
        new="sent, received = places[0], places[0] if ctx.rank % 2 else places[1]",
    ),
    Fault(
        name="a pipeline whose last stage sends to the first",
        module=EXCHANGES,
        old="    return ctx.rank == ctx.world_size - 1\n",
        new="    return False\n",
    ),
    Fault(
        name="activations that the first stage keeps from the last batch",
        module=EXCHANGES,
        old="    return received if ctx.rank else received[:0]\n",
        new="    return received\n",
    ),
    Fault(
        name="gradients that arrive in one place, which the next step's overwrite",
        module=EXCHANGES,
        old="for _ in range(2)])",
        new="for _ in range(1)])",
    ),
    Fault(
        name="gradients of the step before",
        module=EXCHANGES,
        old="            arrived = next(arrivals)\n            memory.all_to_all(gradients, arrived)\n",
        new="            memory.all_to_all(gradients, next(arrivals))\n            arrived = next(arrivals)\n",
    ),
    Fault(
        name="a sum without the last rank's gradients",
        module=EXCHANGES,
        old="torch.sum(arrived.view(ctx.world_size, -1), 0, out=part)",
        new="torch.sum(arrived.view(ctx.world_size, -1)[:-1], 0, out=part)",
    ),
    Fault(
        name="a sum over the elements of each rank",
        module=EXCHANGES,
        old="torch.sum(arrived.view(ctx.world_size, -1), 0, out=part)",
        new="torch.sum(arrived.view(-1, ctx.world_size), 1, out=part)",
    ),
    Fault(
        name="gradients that NCCL averages",
        module=EXCHANGES,
        old="            dist.reduce_scatter_tensor(part, gradients)\n",
        new="            dist.reduce_scatter_tensor(part, gradients)\n            part /= ctx.world_size\n",
    ),
    Fault(
        name="a signal before its data",
        module=ONE_SIDED,
        old="        self._there(tensor, peer).copy_(tensor)\n        self.signal(peer, word)\n",
        new="        self.signal(peer, word)\n        time.sleep(0.05)\n"
        "        self._there(tensor, peer).copy_(tensor)\n",
    ),
    Fault(
        name="a signal that is not taken back",
        module=ONE_SIDED,
        old="        self._own[word] = 0\n",
        new="",
    ),
    Fault(
        name="parts in the order of their receivers",
        module=ONE_SIDED,
        old="chunk(self._ctx.world_size)[self._ctx.rank].copy_(part)",
        new="chunk(self._ctx.world_size)[peer].copy_(part)",
    ),
    Fault(
        name="an all-to-all that returns before all have made their copies",
        module=ONE_SIDED,
        old="        self._meet()\n",
        new="",
    ),
    Fault(
        name="a walk from each line to the next",
        module="suites.symmetric_memory.programs.chase",
        old="for each in range(max(1, stride), 2 * places + 2)",
        new="for each in range(1, 2 * places + 2)",
    ),
    Fault(
        name="a heap's size that is rounded down",
        module="suites.symmetric_memory.programs.heap",
        old="{math.ceil(needed / MiB)}M",
        new="{needed // MiB}M",
    ),
    Fault(
        name="bytes of alignment that are never given back",
        module="suites.symmetric_memory.programs.arena",
        old="self._taken[offset] = wanted",
        new="self._taken[offset] = nbytes",
    ),
    Fault(
        name="a rank sends the same at each step",
        module="suites.symmetric_memory.programs.operations",
        old="seed=(seed * TURNS + step % TURNS) * 64 + rank",
        new="seed=seed * TURNS * 64 + rank",
    ),
    Fault(
        name="tokens of a sequence that are alike on all ranks",
        module="suites.symmetric_memory.programs.kv_cache",
        old="seed = (rank * 64 + sequence) * 4096 + start",
        new="seed = sequence * 4096 + start",
    ),
    Fault(
        name="tokens that are alike in all places",
        module="suites.symmetric_memory.programs.kv_cache",
        old="seed = (rank * 64 + sequence) * 4096 + start",
        new="seed = (rank * 64 + sequence) * 4096",
    ),
    Fault(
        name="a way that is slower at one size and faster after it counts as faster up to there",
        module="suites.symmetric_memory.reference",
        old="            break\n",
        new="            continue\n",
    ),
    Fault(
        name="all pages are sent, however few are asked for",
        module="suites.symmetric_memory.programs.pages",
        old=(
            "        torch.index_select(cache, 0, index, out=outgoing)\n"
            "        operations = [dist.P2POp(dist.isend, outgoing, following), "
            "dist.P2POp(dist.irecv, incoming, before)]\n"
            "        for work in dist.batch_isend_irecv(operations):\n"
            "            work.wait()\n"
            "        return arrived.index_copy_(0, index, incoming)"
        ),
        new=(
            "        whole = torch.empty_like(cache)\n"
            "        operations = [dist.P2POp(dist.isend, cache, following), dist.P2POp(dist.irecv, whole, before)]\n"
            "        for work in dist.batch_isend_irecv(operations):\n"
            "            work.wait()\n"
            "        return arrived.index_copy_(0, index, whole[index])"
        ),
    ),
    Fault(
        name="shards by NCCL of gradients that every rank adds up whole",
        module="suites.symmetric_memory.programs.shards_in_turn",
        old="        dist.reduce_scatter_tensor(summed, own)\n",
        new=(
            "        whole = own.clone()\n"
            "        dist.all_reduce(whole)\n"
            "        summed.copy_(whole.chunk(ctx.world_size)[ctx.rank])\n"
        ),
    ),
    Fault(
        name="gradients that NCCL adds up whole on every rank",
        module="suites.symmetric_memory.programs.exchanges",
        old="            dist.reduce_scatter_tensor(part, gradients)\n            return part",
        new=(
            "            whole = gradients.clone()\n"
            "            dist.all_reduce(whole)\n"
            "            return part.copy_(whole.chunk(ctx.world_size)[ctx.rank])"
        ),
    ),
    Fault(
        name="a heap without the second place for gradients that arrive",
        module="suites.symmetric_memory.programs.exchanges",
        old="memory = open_memory(ctx, 3 * sum(sizes))",
        new="memory = open_memory(ctx, 2 * sum(sizes))",
    ),
    Fault(
        name="a heap for the largest activations alone",
        module="suites.symmetric_memory.programs.exchanges",
        old="memory = open_memory(ctx, 2 * sum(sizes))",
        new="memory = open_memory(ctx, 2 * sizes[-1])",
    ),
    Fault(
        name="sums by gets that all read from the first rank first",
        module="suites.symmetric_memory.programs.sweeping",
        old="ordered = [(ctx.rank + away) % ctx.world_size for away in range(ctx.world_size)]",
        new="ordered = list(range(ctx.world_size))",
    ),
    Fault(
        name="shards by memory that all write to the first rank first",
        module="suites.symmetric_memory.programs.shards_in_turn",
        old="memory.buffer(rank, shape, DTYPE, numel + start) for rank in ordered]",
        new="memory.buffer(rank, shape, DTYPE, numel + start) for rank in sorted(ordered)]",
    ),
    Fault(
        name="sums of gradients that nobody compares",
        module="suites.symmetric_memory.programs.exchanges",
        old='    assert_close(part.double(), total, f"rank {ctx.rank}")\n',
        new="",
    ),
    Fault(
        name="activations that stay where the next ones are to arrive",
        module="suites.symmetric_memory.programs.exchanges",
        old="    received.zero_()\n",
        new="",
    ),
    Fault(
        name="pages that stay where the next ones are to arrive",
        module="suites.symmetric_memory.programs.pages",
        old="    arrived.zero_()\n",
        new="",
    ),
    Fault(
        name="a freed piece joined with one neighbour only",
        module="suites.symmetric_memory.programs.arena",
        old=(
            "                merged[last] += size\n"
            "            else:\n"
            "                last = start\n"
            "                merged[last] = size\n"
        ),
        new=(
            "                merged[last] += size\n"
            "            else:\n"
            "                merged[start] = size\n"
            "            last = start\n"
        ),
    ),
    Fault(
        name="pages lost when an append is refused",
        module="suites.symmetric_memory.programs.kv_cache",
        old=(
            "        taken: list[int] = []\n"
            "        try:\n"
            "            while (len(table) + len(taken)) * self._page_tokens < total:\n"
            "                taken.append(self._arena.allocate(self._page_bytes))\n"
            "        except MemoryError:\n"
            "            for offset in taken:\n"
            "                self._arena.free(offset)\n"
            "            raise\n"
            "        table += taken\n"
        ),
        new=(
            "        # Others see the table when it is written below: an append that is refused changes nothing.\n"
            "        while len(table) * self._page_tokens < total:\n"
            "            table.append(self._arena.allocate(self._page_bytes))\n"
        ),
    ),
    Fault(
        name="a walk that goes through a part of the table",
        module="suites.symmetric_memory.programs.chase",
        old="    return next(each for each in range(max(1, stride), 2 * places + 2) if math.gcd(each, places) == 1)\n",
        new="    return max(1, stride)\n",
    ),
    Fault(
        name="a page too many when the last one is just full",
        module="suites.symmetric_memory.programs.kv_cache",
        old="            while (len(table) + len(taken)) * self._page_tokens < total:\n",
        new="            while (len(table) + len(taken)) * self._page_tokens <= total:\n",
    ),
    Fault(
        name="the momentum is the gradient's own memory",
        module="torch.optim.sgd",
        old="                buf = grad.detach().clone()\n",
        new="                buf = grad.detach()\n",
    ),
)
