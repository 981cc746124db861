"""Faults of the subject multi_node."""

from __future__ import annotations

from benchmarks.mutants.fault import Fault

LEVELS = "suites.multi_node.programs.levels"
SUMMING = "suites.multi_node.programs.summing"
EXCHANGING = "suites.multi_node.programs.exchanging"
LAYOUTS = "suites.multi_node.programs.layouts"
HOSTS = "suites.multi_node.programs.hosts"
REFERENCE = "suites.multi_node.reference"

FAULTS: tuple[Fault, ...] = (
    Fault(
        name="the axes of the two levels are swapped",
        module=LEVELS,
        old='AXES = ("across", "inside")',
        new='AXES = ("inside", "across")',
    ),
    Fault(
        name="ranks dealt to nodes in turn",
        module=LEVELS,
        old="return cls(ctx.mesh((nodes, each), AXES), nodes, each, *divmod(ctx.rank, each))",
        new="return cls(ctx.mesh((each, nodes), AXES[::-1]), nodes, each, *divmod(ctx.rank, nodes)[::-1])",
    ),
    Fault(
        name="nodes that cannot have as many ranks each",
        module=LEVELS,
        old="        if ctx.world_size % nodes:\n",
        new="        if ctx.world_size < nodes:\n",
    ),
    Fault(
        name="shards that are not summed across nodes",
        module=SUMMING,
        old="        dist.all_reduce(shard, group=across)\n",
        new="",
    ),
    Fault(
        name="shards that are summed inside the node",
        module=SUMMING,
        old="        dist.all_reduce(shard, group=across)\n",
        new="        dist.all_reduce(shard, group=inside)\n",
    ),
    Fault(
        name="shards that are summed over all ranks",
        module=SUMMING,
        old="        dist.all_reduce(shard, group=across)\n",
        new="        dist.all_reduce(shard)\n",
    ),
    Fault(
        name="the last elements of an uneven tensor are left out",
        module=SUMMING,
        old="    of_shard = -(-numel // levels.each)\n",
        new="    of_shard = max(1, numel // levels.each)\n    numel = min(numel, of_shard * levels.each)\n",
    ),
    Fault(
        name="sums across nodes in bfloat16",
        module=SUMMING,
        old="        dist.all_reduce(shard, group=across)\n",
        new="        half = shard.bfloat16()\n        dist.all_reduce(half, group=across)\n        shard.copy_(half)\n",
    ),
    Fault(
        name="nothing is gathered inside the node",
        module=SUMMING,
        old="        dist.all_gather_into_tensor(padded, shard, group=inside)\n",
        new="        padded[: len(shard)] = shard\n",
    ),
    Fault(
        name="messages between nodes that stay on the node",
        module=EXCHANGING,
        old="        to, of = (levels.rank_at(levels.node + step, levels.place) for step in steps)\n",
        new="        to, of = (levels.rank_at(levels.node, levels.place + step) for step in steps)\n",
    ),
    Fault(
        name="messages across rails that stay on theirs",
        module=EXCHANGING,
        old="        to, of = (levels.rank_at(levels.node + step, levels.place + step) for step in steps)\n",
        new="        to, of = (levels.rank_at(levels.node + step, levels.place) for step in steps)\n",
    ),
    Fault(
        name="adapters counted by their active ports",
        module=EXCHANGING,
        old="    return len({port.parts[-4] for port in ports",
        new="    return len({port for port in ports",
    ),
    Fault(
        name="messages inside the node that leave it",
        module=EXCHANGING,
        old="        to, of = (levels.rank_at(levels.node, levels.place + step) for step in steps)\n",
        new="        to, of = (levels.rank_at(levels.node + step, levels.place) for step in steps)\n",
    ),
    Fault(
        name="outputs of split blocks that are not summed",
        module=LAYOUTS,
        old="        return _sum(x.contiguous().clone(), group)\n",
        new="        return x.clone()\n",
    ),
    Fault(
        name="gradients of inputs of split blocks that are not summed",
        module=LAYOUTS,
        old="        return _sum(gradients[0].contiguous().clone(), context.group), None\n",
        new="        return gradients[0], None\n",
    ),
    Fault(
        name="gradients of outputs of split blocks that are summed too",
        module=LAYOUTS,
        old="        return gradients[0], None\n",
        new="        return _sum(gradients[0].clone(), context.group), None\n",
    ),
    Fault(
        name="gradients that are not summed over shares of the batch",
        module=LAYOUTS,
        old="        _sum(self._flat, self._data)\n",
        new="",
    ),
    Fault(
        name="gradients that are summed over the parts of the tensors",
        module=LAYOUTS,
        old="        _sum(self._flat, self._data)\n",
        new="        _sum(self._flat, self._tensors)\n",
    ),
    Fault(
        name="gradients of the last step that are not cleared",
        module=LAYOUTS,
        old="        self._flat.zero_()\n",
        new="",
    ),
    Fault(
        name="a loss of the rank's own rows",
        module=LAYOUTS,
        old="        return _sum(loss.detach(), self._data)\n",
        new="        return loss.detach()\n",
    ),
    Fault(
        name="both layouts are the same one",
        module=LAYOUTS,
        old="(levels.inside, levels.across) if inside else (levels.across, levels.inside)",
        new="(levels.inside, levels.across)",
    ),
    Fault(
        name="every rank trains on the first share of the batch",
        module=LAYOUTS,
        old="(part.chunk(self._data.size())[data].to(ctx.device) for part in task.batch())",
        new="(part.chunk(self._data.size())[0].to(ctx.device) for part in task.batch())",
    ),
    Fault(
        name="all nodes are held up",
        module=HOSTS,
        old="        return node == drag.node\n",
        new="        return True\n",
    ),
    Fault(
        name="a slow link that holds up every pair of its node",
        module=HOSTS,
        old="            return partner is not None and {drag.node, drag.partner} == {node, partner}\n",
        new="            return partner is not None and drag.node in (node, partner)\n",
    ),
    Fault(
        name="a slow GPU that holds up its whole node",
        module=HOSTS,
        old="        if drag is None or drag.local_rank not in (None, self._levels.place):\n",
        new="        if drag is None:\n",
    ),
    Fault(
        name="the time before the ranks begin together counts",
        module=HOSTS,
        old="            ctx.barrier()\n            taken.append(_seconds(ctx, lambda: steps(repeats)) / repeats)\n",
        new="            taken.append(_seconds(ctx, lambda: (steps(repeats), ctx.barrier())) / repeats)\n",
    ),
    Fault(
        name="every round is between the same partners",
        module=HOSTS,
        old="        partner = next((sum(pair) - levels.node for pair in pairs if levels.node in pair), None)\n",
        new="        partner = next((sum(pair) - levels.node for pair in rounds[0] if levels.node in pair), None)\n",
    ),
    Fault(
        name="messages that go to the same GPU of every node",
        module=HOSTS,
        old="self._levels.rank_at(partner, self._levels.place)",
        new="self._levels.rank_at(partner, 0)",
    ),
    Fault(
        name="a pair is as fast as its faster end",
        module=REFERENCE,
        old="slower = max(statistics.median(taken), statistics.median(other.paired[one.node]))",
        new="slower = min(statistics.median(taken), statistics.median(other.paired[one.node]))",
    ),
    Fault(
        name="bytes of a copy that count once",
        module=REFERENCE,
        old="return 2 * load.copied / statistics.median(seen.copy)",
        new="return load.copied / statistics.median(seen.copy)",
    ),
    Fault(
        name="the odd product is taken for the usual one",
        module=REFERENCE,
        old="usual = statistics.mode(one.digest for one in seen)",
        new="usual = max(one.digest for one in seen)",
    ),
    Fault(
        name="seconds of a sample taken for those of a step",
        module="suites.multi_node.programs.hosts",
        old="taken.append(_seconds(ctx, lambda: steps(repeats)) / repeats)",
        new="taken.append(_seconds(ctx, lambda: steps(repeats)))",
    ),
    Fault(
        name="the loss is summed in the weights' dtype",
        module="suites.multi_node.programs.layouts",
        old="loss = off.to(torch.promote_types(off.dtype, torch.float32)).square().sum() / 2",
        new="loss = off.square().sum() / 2",
    ),
    Fault(
        name="the sum inside a host is of as many bytes as the one of all",
        module="suites.multi_node.programs.hosts",
        old="return self._sum(self._load.linked,",
        new="return self._sum(self._load.summed,",
    ),
    Fault(
        name="messages between hosts as long as a sum inside one",
        module="suites.multi_node.programs.hosts",
        old="source = torch.empty(self._load.sent, dtype",
        new="source = torch.empty(self._load.linked, dtype",
    ),
    Fault(
        name="a copy in memory as long as a message",
        module="suites.multi_node.programs.hosts",
        old="source = torch.empty(self._load.copied, dtype",
        new="source = torch.empty(self._load.sent, dtype",
    ),
    Fault(
        name="a pair of hosts is as fast as its fastest GPUs",
        module="suites.multi_node.reference",
        old="rows[row][column] = min(rate, rows[row][column] or rate)",
        new="rows[row][column] = max(rate, rows[row][column] or rate)",
    ),
    Fault(
        name="a pair of hosts is as fast as its last GPUs",
        module="suites.multi_node.reference",
        old="rows[row][column] = min(rate, rows[row][column] or rate)",
        new="rows[row][column] = rate",
    ),
    Fault(
        name="products at the rate of the best sample",
        module="suites.multi_node.reference",
        old="return 2 * load.width**3 / statistics.median(seen.product)",
        new="return 2 * load.width**3 / min(seen.product)",
    ),
    Fault(
        name="copies at the rate of a mean sample",
        module="suites.multi_node.reference",
        old="return 2 * load.copied / statistics.median(seen.copy)",
        new="return 2 * load.copied / statistics.fmean(seen.copy)",
    ),
    Fault(
        name="all layers start with the same numbers",
        module="suites.multi_node.programs.layouts",
        old="seed = self.seed * 64 + stream",
        new="seed = self.seed * 64 + stream % 2",
    ),
    Fault(
        name="all layers and the batch start with the same numbers",
        module="suites.multi_node.programs.layouts",
        old="seed = self.seed * 64 + stream",
        new="seed = self.seed * 64",
    ),
    Fault(
        name="a sum by two levels that is the flat one",
        module="suites.multi_node.programs.summing",
        old=(
            "        dist.reduce_scatter_tensor(shard, padded, group=inside)\n"
            "        dist.all_reduce(shard, group=across)\n"
            "        dist.all_gather_into_tensor(padded, shard, group=inside)\n"
        ),
        new="        dist.all_reduce(padded)\n",
    ),
    Fault(
        name="a node without a partner has measured a pair",
        module="suites.multi_node.programs.hosts",
        old="        if partner is not None:\n            paired[partner] = taken\n",
        new="        paired[partner] = taken\n",
    ),
    Fault(
        name="a rank that is alone in its group sums all the same",
        module="suites.multi_node.programs.layouts",
        old="    if group.size() > 1:\n        dist.all_reduce(tensor, group=group)\n",
        new="    dist.all_reduce(tensor, group=group)\n",
    ),
    Fault(
        name="gradients that are summed one by one",
        module="suites.multi_node.programs.layouts",
        old="        _sum(self._flat, self._data)\n",
        new="        for gradient in self.gradients.values():\n            _sum(gradient, self._data)\n",
    ),
    Fault(
        name="sums of links that nobody compares",
        module=HOSTS,
        old='        assert_sum(x, ranks=ranks, steps=self._steps, where=f"{self._who}, {what}")\n',
        new="",
    ),
    Fault(
        name="a message that stays where the next one is to arrive",
        module=EXCHANGING,
        old="    received.zero_()",
        new="",
    ),
    Fault(
        name="wrong bytes of a link that nobody reports",
        module=HOSTS,
        old='        self._require(wrong, f"bytes from rank {peer} of node {partner}")\n',
        new="",
    ),
    Fault(
        name="a ring inside a node that leaves it at its last rank",
        module=LEVELS,
        old="        return node % self.nodes * self.each + place % self.each\n",
        new="        return (node * self.each + place) % (self.nodes * self.each)\n",
    ),
    Fault(
        name="a drag on local rank 0 holds up the whole node",
        module=HOSTS,
        old="        if drag is None or drag.local_rank not in (None, self._levels.place):\n",
        new="        if drag is None or (drag.local_rank or self._levels.place) != self._levels.place:\n",
    ),
    Fault(
        name="the two levels of a sum in the wrong order",
        module=SUMMING,
        old=(
            "    inside, across = levels.inside, levels.across\n"
            "    of_shard = -(-numel // levels.each)\n"
            "    padded = _held(ctx, numel, of_shard * levels.each, dtype)\n"
        ),
        new=(
            "    inside, across = levels.across, levels.inside\n"
            "    of_shard = -(-numel // inside.size())\n"
            "    padded = _held(ctx, numel, of_shard * inside.size(), dtype)\n"
        ),
    ),
    Fault(
        name="a drag on a link holds up nothing",
        module=HOSTS,
        old="        taken = self._timed(step, partner)\n",
        new="        taken = self._timed(step)\n",
    ),
    Fault(
        name="the loss's squares are added up in 16 bits",
        module=LAYOUTS,
        old="        loss = off.to(torch.promote_types(off.dtype, torch.float32)).square().sum() / 2\n",
        new="        loss = off.square().sum().to(torch.promote_types(off.dtype, torch.float32)) / 2\n",
    ),
)
