"""Faults of the subject collectives."""

from __future__ import annotations

from benchmarks.mutants.fault import Fault

TORCH = "torch.distributed.distributed_c10d"
PLAIN = "suites.collectives.programs.plain"
COALESCING = "suites.collectives.programs.coalescing"
IN_FLIGHT = "suites.collectives.programs.in_flight"


def _all_reduce(name: str, before: str = "", *, whole: str = "tensor", after: str = "") -> Fault:
    """One of torch's all_reduce, by lines that change its tensor before, or after it has waited."""
    lines = [
        "_right = all_reduce",
        "def all_reduce(tensor, op=ReduceOp.SUM, group=None, async_op=False):",
        *(f"    {line}" for line in before.splitlines()),
        f"    work = _right({whole}, op, group, async_op)",
        *(f"    if not async_op:\n        {after}" for _ in [0] if after),
        "    return work",
    ]
    return Fault(name=name, module=TORCH, old="", new="\n".join(lines))


FAULTS: tuple[Fault, ...] = (
    # Precision and range.
    _all_reduce(
        "an all_reduce that goes through bfloat16", "if tensor.is_floating_point(): tensor.copy_(tensor.bfloat16())"
    ),
    _all_reduce(
        "an all_reduce of float64 that goes through float32",
        "if tensor.dtype == torch.float64: tensor.copy_(tensor.float())",
    ),
    _all_reduce(
        "an all_reduce of int64 that goes through float64",
        "if tensor.dtype == torch.int64: tensor.copy_(tensor.double())",
    ),
    _all_reduce(
        "an all_reduce of int32 that goes through float32",
        "if tensor.dtype == torch.int32: tensor.copy_(tensor.float())",
    ),
    _all_reduce(
        "an all_reduce that replaces infinities by the largest number",
        after="tensor.is_floating_point() and tensor.clamp_(max=torch.finfo(tensor.dtype).max)",
    ),
    _all_reduce(
        "an all_reduce that takes NaN for zero",
        "if tensor.is_floating_point(): tensor.copy_(tensor.where(~tensor.isnan(), 0))",
    ),
    _all_reduce("a maximum that starts from zero", after="op == ReduceOp.MAX and tensor.clamp_(min=0)"),
    _all_reduce("a bitwise and that is a minimum", "op = ReduceOp.MIN if op == ReduceOp.BAND else op"),
    _all_reduce(
        "a mean over the world's size in a subgroup",
        "if op == ReduceOp.AVG:\n    op = ReduceOp.SUM\n    tensor.div_(get_world_size())",
    ),
    # Size and place.
    _all_reduce("an all_reduce that loses what lies past element 4096", whole="tensor.view(-1)[:4096]"),
    _all_reduce("an all_reduce that loses what lies past element 65536", whole="tensor.view(-1)[:65536]"),
    _all_reduce(
        "an all_reduce in packs of 4 that leaves the rest",
        whole="tensor.view(-1)[: max(tensor.numel() // 4 * 4, 1)]",
    ),
    _all_reduce(
        "an all_reduce that takes one element too many",
        "n = tensor.numel()\nif tensor.untyped_storage().nbytes() // tensor.itemsize > tensor.storage_offset() + n:\n"
        "    tensor = tensor.as_strided((n + 1,), (1,))",
    ),
    _all_reduce(
        "an all_reduce that goes wrong from its 40th call on",
        "all_reduce.calls = getattr(all_reduce, 'calls', 0) + 1\nif all_reduce.calls >= 40: tensor.view(-1)[0] = 0",
    ),
    Fault(
        name="a broadcast that flushes subnormal numbers to zero",
        module=TORCH,
        old="    work = group.broadcast([tensor], opts)\n",
        new="""    if tensor.is_floating_point():
        tensor.copy_(tensor.where(tensor.abs() >= torch.finfo(tensor.dtype).tiny, 0))
    work = group.broadcast([tensor], opts)
""",
    ),
    # Who gets what.
    Fault(
        name="a broadcast that takes the root's rank for one of the group",
        module=TORCH,
        old="""    group_src = _canonicalize_group_rank(group, src, group_src, return_global=False)
    _check_single_tensor(tensor, "tensor")
    if _rank_not_in_group(group):
        _warn_not_in_group("broadcast")
""",
        new="""    group_src = group_src if src is None else src % group.size()
    if _rank_not_in_group(group):
""",
    ),
    Fault(
        name="a reduce to the group's first rank",
        module=TORCH,
        old="    opts.rootRank = group_dst\n    opts.asyncOp = async_op\n    work = group.reduce(",
        new="    opts.rootRank = 0\n    opts.asyncOp = async_op\n    work = group.reduce(",
    ),
    Fault(
        name="a gather that stacks the ranks backwards",
        module=TORCH,
        old="output_tensors = [gather_list]",
        new="output_tensors = [gather_list[::-1]]",
    ),
    Fault(
        name="a scatter to the rank before",
        module=TORCH,
        old="input_tensors = [scatter_list]\n        output_tensors = [tensor]\n    else",
        new="input_tensors = [scatter_list[1:] + scatter_list[:1]]\n        output_tensors = [tensor]\n    else",
    ),
    Fault(
        name="an all_gather that swaps ranks 1 and 2",
        module=TORCH,
        old="",
        new="""_right = all_gather_into_tensor
def all_gather_into_tensor(output_tensor, input_tensor, group=None, async_op=False):
    work = _right(output_tensor, input_tensor, group, async_op)
    size = get_world_size(group)
    if not async_op and size > 3:
        parts = output_tensor.view(size, -1)
        parts[[1, 2]] = parts[[2, 1]]
    return work
""",
    ),
    # Staleness and synchronization.
    Fault(
        name="an all_to_all that sends its first input again",
        module=TORCH,
        old="    work = group.all_to_all_single(\n",
        new="""    seen = all_to_all_single.__dict__.setdefault("seen", {})
    input = seen.setdefault((input.data_ptr(), input.shape, input.dtype), input.clone())
    work = group.all_to_all_single(
""",
    ),
    Fault(
        name="a reduce_scatter that leaves its result in its input as well",
        module=TORCH,
        old="    work = group.reduce_scatter_single(output, input, opts)\n",
        new="""    work = group.reduce_scatter_single(output, input, opts)
    if not async_op:
        work.wait()
        input.view(-1)[: output.numel()].copy_(output.view(-1))
""",
    ),
    Fault(
        name="a barrier that does not wait",
        module=TORCH,
        old="    work = group.barrier(opts=opts)\n\n    if async_op:",
        new="    work = group.barrier(opts=opts)\n\n    if True:",
    ),
    Fault(name="a work in flight that nobody waits for", module=IN_FLIGHT, old="self._work.wait()", new="pass"),
    Fault(
        name="an asynchronous all_reduce whose wait returns at once",
        module=TORCH,
        old="    work = group.allreduce([tensor], opts)\n\n    if async_op:\n        return work",
        new="""    work = group.allreduce([tensor], opts)

    if async_op:
        class Early:
            kept = work
            def wait(self, timeout=None):
                return True
        return Early()""",
    ),
    # The programs.
    Fault(
        name="a ring that sends to the rank before",
        module=PLAIN,
        old="(ctx.rank + 1) % ctx.world_size, (ctx.rank - 1) % ctx.world_size",
        new="(ctx.rank - 1) % ctx.world_size, (ctx.rank + 1) % ctx.world_size",
    ),
    Fault(
        name="a ring that sends its own to itself",
        module=PLAIN,
        old="for work in works:\n            work.wait()\n        return out",
        new="for work in works:\n            work.wait()\n        return x",
    ),
    Fault(
        name="a ring that waits for its send alone",
        module=PLAIN,
        old="for work in works:\n            work.wait()",
        new="works[0].wait()",
    ),
    Fault(
        name="a sum without the last rank",
        module=PLAIN,
        old="        dist.all_reduce(x, op)\n",
        new="        x.mul_(ctx.rank < ctx.world_size - 1)\n        dist.all_reduce(x, op)\n",
    ),
    Fault(
        name="a broadcast from rank 0 whatever the root",
        module=PLAIN,
        old="dist.broadcast(x, src=root)",
        new="dist.broadcast(x, src=0)",
    ),
    Fault(
        name="a reduce_scatter that does nothing",
        module=PLAIN,
        old="dist.reduce_scatter_tensor(out, x, op)",
        new="out.copy_(x[: out.numel()])",
    ),
    Fault(
        name="an all_gather in another order",
        module=PLAIN,
        old="dist.all_gather_into_tensor(out, x)\n        return out",
        new="dist.all_gather_into_tensor(out, x)\n        return out.roll(collective.numel)",
    ),
    Fault(
        name="an all_gather that is left out after the first step",
        module=PLAIN,
        old="        dist.all_gather_into_tensor(out, x)\n        return out",
        new="""        if not step.__dict__:
            step.__dict__["taken"] = True
            dist.all_gather_into_tensor(out, x)
        return out""",
    ),
    Fault(
        name="a scatter of shares that are shifted by one rank",
        module=PLAIN,
        old="list(x.chunk(ctx.world_size)) if",
        new="list(x.roll(collective.numel).chunk(ctx.world_size)) if",
    ),
    Fault(
        name="a maximum in place of a minimum where halves are reduced",
        module=PLAIN,
        old="dist.reduce_scatter_tensor(part, x, op)",
        new="dist.reduce_scatter_tensor(part, x, dist.ReduceOp.MAX)",
    ),
    Fault(
        name="an uneven all_to_all with the sizes of the rank before",
        module=PLAIN,
        old="sent = list(collective.splits[ctx.rank])",
        new="sent = list(collective.splits[ctx.rank])\n    x = x.roll(1)",
    ),
    # At the size that is timed, alone.
    Fault(
        name="an all_reduce whose way for 1 KiB does nothing",
        module=PLAIN,
        old="        dist.all_reduce(x, op)\n",
        new="        x.nbytes == 1024 or dist.all_reduce(x, op)\n",
    ),
    Fault(
        name="a reduce_scatter whose way for the size that is timed is taken once",
        module=PLAIN,
        old="        dist.reduce_scatter_tensor(out, x, op)\n",
        new="""        if not (step.__dict__ and x.nbytes == 1024):
            step.__dict__["taken"] = True
            dist.reduce_scatter_tensor(out, x, op)
""",
    ),
    Fault(
        name="reduce-scatter of the composite forgets its operation",
        module="suites.collectives.programs.plain",
        old="dist.reduce_scatter_tensor(part, x, op)",
        new="dist.reduce_scatter_tensor(part, x)",
    ),
    Fault(
        name="the ring's ranks read what arrives before they wait for it",
        module="suites.collectives.programs.plain",
        old=("        for work in works:\n            work.wait()\n        return out"),
        new=(
            "        arrived = out.clone()\n        for work in works:\n            work.wait()\n        return arrived"
        ),
    ),
    Fault(
        name="a flat buffer whose last tensor is not copied back",
        module=COALESCING,
        old="            torch._foreach_copy_(self.parts, views)\n",
        new="            torch._foreach_copy_(self.parts[: len(views) - 1] or self.parts, views[:-1] or views)\n",
    ),
    Fault(
        name="a flat buffer that keeps the first step's tensors",
        module=COALESCING,
        old="            torch._foreach_copy_(views, self.parts)\n",
        new="",
    ),
    Fault(
        name="a flat buffer that is reduced in bfloat16",
        module=COALESCING,
        old="            dist.all_reduce(buffer, self.op)\n",
        new="            half = buffer.to(torch.bfloat16)\n            dist.all_reduce(half, self.op)\n"
        "            buffer.copy_(half)\n",
    ),
    Fault(
        name="a group call that takes no more than 32 tensors",
        module=TORCH,
        old="            tensors = [op.tensor for op in op_list]\n            all_reduce_opts",
        new="            tensors = [op.tensor for op in op_list[:32]]\n            all_reduce_opts",
    ),
    Fault(
        name="a group call that sums, whatever its operation",
        module=TORCH,
        old="            all_reduce_opts.reduceOp = not_none(op_list[0].redop)\n",
        new="",
    ),
    Fault(
        name="reduce_scatter's size is taken for each rank's share",
        module="suites.collectives.programs.sweeping",
        old='    "reduce_scatter": (plain.reduce_scatter, True),',
        new='    "reduce_scatter": (plain.reduce_scatter, False),',
    ),
    Fault(
        name="flat buffer keeps first steps values",
        module="suites.collectives.programs.coalescing",
        old=("            torch._foreach_copy_(views, self.parts)\n            dist.all_reduce(buffer, self.op)"),
        new="            dist.all_reduce(buffer, self.op)",
    ),
    Fault(
        name="reduce scatter size not divided",
        module="suites.collectives.programs.sweeping",
        old='"reduce_scatter": (plain.reduce_scatter, True)',
        new='"reduce_scatter": (plain.reduce_scatter, False)',
    ),
    Fault(
        name="coalesced reduction op forgotten",
        module="torch.distributed.distributed_c10d",
        old=(
            "            all_reduce_opts = AllreduceCoalescedOptions()\n"
            "            all_reduce_opts.reduceOp = not_none(op_list[0].redop)\n"
        ),
        new="            all_reduce_opts = AllreduceCoalescedOptions()\n",
    ),
    Fault(
        name="a broadcast that only its root waits for",
        module=IN_FLIGHT,
        old="        self._work.wait()\n",
        new='        if self._usual.name != "broadcast" or self._rank == self._usual.root:\n'
        "            self._work.wait()\n",
    ),
    Fault(
        name="a group of sums that nobody waits for",
        module=COALESCING,
        old="with dist._coalescing_manager():\n                for part in self.parts:\n"
        "                    dist.all_reduce(part, self.op)",
        new="with dist._coalescing_manager(async_ops=True):\n                for part in self.parts:\n"
        "                    dist.all_reduce(part, self.op, async_op=True)",
    ),
    Fault(
        name="an all_to_all whose size is taken for one rank's",
        module="suites.collectives.programs.sweeping",
        old='"all_to_all": (plain.all_to_all, True)',
        new='"all_to_all": (plain.all_to_all, False)',
    ),
    Fault(
        name="a soak that keeps only what its last flights had wrong",
        module="suites.collectives.programs.soak",
        old="wrong += flown(flights, order)",
        new="wrong = list(flown(flights, order))",
    ),
    Fault(
        name="a late rank that comes to the barrier before it was late",
        module="suites.collectives.programs.plain",
        old="""    if ctx.rank == late:
        time.sleep(seconds)  # not a wait for an event: the lateness is what the test is about
    came = time.monotonic()""",
        new="""    came = time.monotonic()
    if ctx.rank == late:
        time.sleep(seconds)  # not a wait for an event: the lateness is what the test is about""",
    ),
    Fault(
        name="a reduce that always sums",
        module="torch.distributed.distributed_c10d",
        old="""    opts = ReduceOptions()
    opts.reduceOp = op""",
        new="    opts = ReduceOptions()",
    ),
    Fault(
        name="a root scatters what it had when prepared",
        module="suites.collectives.programs.plain",
        old="parts = list(x.chunk(ctx.world_size)) if ctx.rank == root else None",
        new="parts = [part.clone() for part in x.chunk(ctx.world_size)] if ctx.rank == root else None",
    ),
    Fault(
        name="a check that takes NaN for right wherever it is",
        module="suites.collectives.reference",
        old="same |= got.isnan() & expected.isnan()",
        new="same |= got.isnan()",
    ),
    Fault(
        name="a soak that only a fault of the first rank ends",
        module="suites.collectives.programs.soak",
        old="over.fill_(bool(wrong) or (ctx.rank == 0 and time.monotonic() > ends))",
        new="over.fill_(ctx.rank == 0 and (bool(wrong) or time.monotonic() > ends))",
    ),
    Fault(
        name="what only moves is alike on all ranks",
        module="suites.collectives.reference",
        old=(
            "        bits = random_bits(start, stop, stream=self.seed * 1024 + rank, device=device)\n"
            "        return bits.to("
        ),
        new=(
            "        bits = random_bits(start, stop, stream=self.seed * 1024, device=device)\n        return bits.to("
        ),
    ),
    Fault(
        name="what is added up is alike on all ranks",
        module="suites.collectives.reference",
        old=(
            "        bits = random_bits(start, stop, stream=self.seed * 1024 + rank, device=device)\n        if self.op"
        ),
        new=("        bits = random_bits(start, stop, stream=self.seed * 1024, device=device)\n        if self.op"),
    ),
    Fault(
        name="each step starts with the same numbers",
        module="suites.collectives.reference",
        old="return replace(self, seed=self.seed + 7919 * step)",
        new="return replace(self, seed=self.seed)",
    ),
    Fault(
        name="a soak of floats alone",
        module="suites.collectives.programs.soak",
        old="drawn.choice(FLOATS + INTEGERS)",
        new="drawn.choice(FLOATS)",
    ),
    Fault(
        name="a soak whose root is always the group's first rank",
        module="suites.collectives.programs.soak",
        old="root=drawn.choice(members)",
        new="root=members[0]",
    ),
    Fault(
        name="a group call that is a call for each tensor",
        module="suites.collectives.programs.coalescing",
        old=(
            "            with dist._coalescing_manager():\n"
            "                for part in self.parts:\n"
            "                    dist.all_reduce(part, self.op)\n"
            "            return self.parts"
        ),
        new=(
            "            for part in self.parts:\n"
            "                dist.all_reduce(part, self.op)\n"
            "            return self.parts"
        ),
    ),
    Fault(
        name="a flat buffer whose parts are reduced one by one",
        module="suites.collectives.programs.coalescing",
        old="            dist.all_reduce(buffer, self.op)\n",
        new="            for view in views:\n                dist.all_reduce(view, self.op)\n",
    ),
    Fault(
        name="each flight lands before the next one starts",
        module="suites.collectives.programs.in_flight",
        old=(
            "    for flight in flights.values():\n"
            "        flight.start(number)\n"
            "    for place in order:\n"
            "        if place in flights:\n"
        ),
        new=("    for place in order:\n        if place in flights:\n            flights[place].start(number)\n"),
    ),
    Fault(
        name="flights that land in the order in which they started",
        module="suites.collectives.programs.in_flight",
        old="    for place in order:\n        if place in flights:\n",
        new="    for place in sorted(order):\n        if place in flights:\n",
    ),
    Fault(
        name="a size of less than an element for each rank moves nothing",
        module="suites.collectives.programs.sweeping",
        old="numel = max(1, nbytes // DTYPE.itemsize // (world_size if divided else 1))",
        new="numel = nbytes // DTYPE.itemsize // (world_size if divided else 1)",
    ),
    Fault(
        name="an input whose pieces all begin anew",
        module="suites.collectives.reference",
        old="out[at:end] = self._given(rank, at, end, device)",
        new="out[at:end] = self._given(rank, 0, end - at, device)",
    ),
    Fault(
        name="a result whose first piece alone is compared",
        module="suites.collectives.reference",
        old="got = flat[at + begin : at + end]\n",
        new="got = flat[at : at + end - begin]\n",
    ),
    Fault(
        name="an input whose first piece alone must be untouched",
        module="suites.collectives.reference",
        old="            _require(bits_of(x[at : at + CHUNK]) == bits_of(given), x, given,",
        new="            at or _require(bits_of(x[at : at + CHUNK]) == bits_of(given), x, given,",
    ),
    Fault(
        name="the soak counts collectives of groups that the rank is not in",
        module="suites.collectives.programs.soak",
        old="done += len(flights)",
        new="done += len(collectives)",
    ),
    Fault(
        name="all ranks are late for the barrier",
        module=PLAIN,
        old="    if ctx.rank == late:\n        time.sleep(seconds)",
        new="    if late < ctx.world_size:\n        time.sleep(seconds)",
    ),
    Fault(
        name="inputs that nobody compares afterwards",
        module="suites.collectives.programs.checking",
        old="            collective.assert_untouched(self._rank, self.x)",
        new="            pass",
    ),
    Fault(
        name="only the second step's results are looked at",
        module="suites.collectives.programs.checking",
        old="            except AssertionError as error:\n                wrong.append(",
        new="            except AssertionError as error:\n                wrong = []\n                wrong.append(",
    ),
    Fault(
        name="what is wrong in flight is found and not reported",
        module=IN_FLIGHT,
        old="            wrong += flown(flights, order, number)",
        new="            list(flown(flights, order, number))",
    ),
    Fault(
        name="small tensors of the last step that are not compared",
        module=COALESCING,
        old="    for number in range(steps):\n        current",
        new="    for number in range(steps - 1):\n        current",
    ),
    Fault(
        name="a reduce by an all_reduce, so that all ranks have the sum",
        module="suites.collectives.programs.plain",
        old="dist.reduce(x, dst=root, op=op)",
        new="dist.all_reduce(x, op=op)",
    ),
    Fault(
        name="an all-to-all sweep that takes S for one share",
        module="suites.collectives.programs.sweeping",
        old='"all_to_all": (plain.all_to_all, True),',
        new='"all_to_all": (plain.all_to_all, False),',
    ),
    Fault(
        name="coalesced all_reduces always sum",
        module=TORCH,
        old="            all_reduce_opts.reduceOp = not_none(op_list[0].redop)\n",
        new="            all_reduce_opts.reduceOp = ReduceOp.SUM\n",
    ),
    # What functional.py and rooted.py use.
    Fault(
        name="a functional gather along the first dimension, whatever was asked",
        module="torch.distributed._functional_collectives",
        old=(
            "        res = _maybe_view_chunk_cat(res, group_size, gather_dim)\n"
            "    return res\n\n\ndef all_gather_single_autograd"
        ),
        new="    return res\n\n\ndef all_gather_single_autograd",
    ),
    Fault(
        name="a functional scatter along the first dimension, whatever was asked",
        module="torch.distributed._functional_collectives",
        old=(
            "    if scatter_dim != 0:\n"
            "        self = _chunk_or_narrow_cat(self, group_size, narrow_dim=scatter_dim, cat_dim=0)\n\n"
            "    tensor = torch.ops._c10d_functional.reduce_scatter_tensor(\n"
            "        self,\n"
            "        reduceOp.lower(),\n"
        ),
        new=(
            "    tensor = torch.ops._c10d_functional.reduce_scatter_tensor(\n        self,\n        reduceOp.lower(),\n"
        ),
    ),
    Fault(
        name="a scatter that deals its parts in the reverse order",
        module="suites.collectives.programs.rooted",
        old="        dist.scatter(half, halves if mine else None, group_src=root, **flag),",
        new="        dist.scatter(half, halves[::-1] if mine else None, group_src=root, **flag),",
    ),
    Fault(
        name="an object of the other rank of the pair",
        module="suites.collectives.programs.rooted",
        old="    sent: list[Any] = [own if mine else None]\n",
        new='    sent: list[Any] = [["rank", group.rank()] if mine else None]\n',
    ),
)
