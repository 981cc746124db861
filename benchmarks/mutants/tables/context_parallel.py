"""Faults of the subject context_parallel."""

from __future__ import annotations

from benchmarks.mutants.fault import Fault

PROGRAMS = "suites.context_parallel.programs.attention"
RACING = "suites.context_parallel.programs.racing"

FAULTS: tuple[Fault, ...] = (
    Fault(
        name="keys that never travel",
        module=PROGRAMS,
        old="            held = rotate(ctx, held)\n",
        new="            pass\n",
    ),
    Fault(
        name="gradients that do not travel back",
        module=PROGRAMS,
        old="            held = rotate(ctx, held)\n",
        new="            held = rotated(ctx, held.detach(), 1)\n",
    ),
    Fault(
        name="gradients that travel on, and not back",
        module=PROGRAMS,
        old="return rotated(function.rank, gradients[0], -1), None",
        new="return rotated(function.rank, gradients[0], 1), None",
    ),
    Fault(
        name="a ring in the other direction, with the masks of the first",
        module=PROGRAMS,
        old="        return rotated(ctx, tensor, 1)\n",
        new="        return rotated(ctx, tensor, -1)\n",
    ),
    Fault(
        name="keys that travel in bfloat16",
        module=PROGRAMS,
        old="            held = rotate(ctx, held)\n",
        new="            held = rotate(ctx, held.bfloat16()).to(held.dtype)\n",
    ),
    Fault(
        name="keys that travel in float32",
        module=PROGRAMS,
        old="            held = rotate(ctx, held)\n",
        new="            held = rotate(ctx, held.float()).to(held.dtype)\n",
    ),
    Fault(
        name="a mask that takes each rank's tokens for one contiguous part",
        module=PROGRAMS,
        old="    rows = positions[ctx.rank]\n",
        new="    positions = torch.cat(list(positions)).sort().values.chunk(len(positions))\n"
        "    rows = positions[ctx.rank]\n",
    ),
    Fault(
        name="a mask of the next rank's keys",
        module=PROGRAMS,
        old="        columns = positions[(ctx.rank - distance) % ctx.world_size]\n",
        new="        columns = positions[(ctx.rank + distance) % ctx.world_size]\n",
    ),
    Fault(
        name="a causal mask without the token itself",
        module=PROGRAMS,
        old="scores.masked_fill(rows[:, None] < columns, -math.inf)",
        new="scores.masked_fill((rows[:, None] <= columns) & (rows[:, None] > 0), -math.inf)",
    ),
    Fault(
        name="no rescaling of what came before",
        module=PROGRAMS,
        old="        weighted = weighted * shrink + exponentials @ some_values\n",
        new="        weighted = weighted + exponentials @ some_values\n",
    ),
    Fault(
        name="a normalizer that is not rescaled",
        module=PROGRAMS,
        old="        total = total * shrink + exponentials.sum(-1, keepdim=True)\n",
        new="        total = total + exponentials.sum(-1, keepdim=True)\n",
    ),
    Fault(
        name="softmax without the largest score",
        module=PROGRAMS,
        old="        seen = torch.maximum(largest, scores.detach().amax(-1, keepdim=True))\n",
        new="        seen = torch.zeros_like(largest)\n",
    ),
    Fault(
        name="online softmax that keeps the first part's largest score",
        module=PROGRAMS,
        old="        seen = torch.maximum(largest, scores.detach().amax(-1, keepdim=True))\n",
        new="        seen = scores.detach().amax(-1, keepdim=True) if distance == 0 else largest\n",
    ),
    Fault(
        name="the last part of the ring is left out",
        module=PROGRAMS,
        old="    for distance in range(ctx.world_size):\n",
        new="    for distance in range(max(2, ctx.world_size - 1)):\n",
    ),
    Fault(
        name="scores that are scaled by the number of features",
        module=PROGRAMS,
        old="    scores = query @ key.mT / math.sqrt(query.shape[-1])\n",
        new="    scores = query @ key.mT / query.shape[-1]\n",
    ),
    Fault(
        name="query heads that share the wrong keys",
        module=PROGRAMS,
        old="held.to(dtype).repeat_interleave(groups, dim=2)",
        new="held.to(dtype).repeat(1, 1, groups, 1, 1)",
    ),
    Fault(
        name="keys that are repeated before they travel",
        module=PROGRAMS,
        old="    held = torch.stack([key, value])\n    query = query.to(dtype)\n",
        new="    held = torch.stack([key, value]).repeat_interleave(groups, dim=2)\n    groups = 1\n"
        "    query = query.to(dtype)\n",
    ),
    Fault(
        name="everybody's keys gathered besides",
        module=PROGRAMS,
        old="    held = torch.stack([key, value])\n    query = query.to(dtype)\n",
        new="    held = torch.stack([key, value])\n"
        "    dist.all_gather([torch.empty_like(key) for _ in range(ctx.world_size)], key.detach())\n"
        "    query = query.to(dtype)\n",
    ),
    Fault(
        name="a ring whose sums are in bfloat16",
        module=PROGRAMS,
        old="    weighted = torch.zeros_like(query)\n    for distance",
        new="    query, dtype = query.bfloat16(), torch.bfloat16\n    largest = largest.bfloat16()\n"
        "    total, weighted = torch.zeros_like(largest), torch.zeros_like(query)\n    for distance",
    ),
    Fault(
        name="the first step's keys at every step",
        module=PROGRAMS,
        old="    def step() -> Tensors:\n        now = next(coming)\n",
        new="    first = []\n\n    def step() -> Tensors:\n        now = next(coming)\n        first.append(now)\n"
        "        now = {**now, 'key': first[0]['key']}\n",
    ),
    Fault(
        name="Ulysses whose mask takes gathered tokens for ordered ones",
        module=PROGRAMS,
        old="    order = gathered.argsort()\n",
        new="    gathered = order = torch.arange(len(gathered), device=gathered.device)\n",
    ),
    Fault(
        name="Ulysses that gives the tokens back in their own order",
        module=PROGRAMS,
        old="    return all_to_all(ctx, output[:, :, gathered], split=SEQUENCE, join=1)\n",
        new="    return all_to_all(ctx, output, split=SEQUENCE, join=1)\n",
    ),
    Fault(
        name="Ulysses without gradients through the exchange",
        module=PROGRAMS,
        old="    received: torch.Tensor = _AllToAll.apply(parts, ctx)",
        new="    received: torch.Tensor = _AllToAll.apply(parts.detach().requires_grad_(), ctx) if split == 1 else "
        "_AllToAll.apply(parts, ctx)",
    ),
    Fault(
        name="Ulysses that joins the ranks' heads in reverse",
        module=PROGRAMS,
        old="    return torch.cat(received.unbind(), join)\n",
        new="    return torch.cat(received.flip(0).unbind() if join == 1 else received.unbind(), join)\n",
    ),
    Fault(
        name="a layout whose tail is the rank's own part again",
        module=PROGRAMS,
        old="    return [torch.cat([chunks[rank], chunks[parts - 1 - rank]]) for rank in range(degree)]",
        new="    return [torch.cat([chunks[2 * rank], chunks[2 * rank + 1]]) for rank in range(degree)]",
    ),
    Fault(
        name="tokens go back by the order in which they came",
        module="suites.context_parallel.programs.attention",
        old="output[:, :, gathered]",
        new="output[:, :, order]",
    ),
    Fault(
        name="gradients travel on, not back",
        module="suites.context_parallel.programs.attention",
        old="rotated(function.rank, gradients[0], -1)",
        new="rotated(function.rank, gradients[0], 1)",
    ),
    Fault(
        name="head-tail layout pairs part r with part R + r: the last rank has more work again",
        module="suites.context_parallel.programs.attention",
        old="chunks[parts - 1 - rank]",
        new="chunks[degree + rank]",
    ),
    Fault(
        name="without a mask the tokens are not put in order, but the output is still put back",
        module="suites.context_parallel.programs.attention",
        old="    order = gathered.argsort()\n",
        new="    order = gathered.argsort() if causal else slice(None)  # without a mask any order will do\n",
    ),
    Fault(
        name="positions of the following rank",
        module="suites.context_parallel.programs.attention",
        old="positions[(ctx.rank - distance) % ctx.world_size]",
        new="positions[(ctx.rank + distance) % ctx.world_size]",
    ),
    Fault(
        name="largest score of the whole tensor",
        module="suites.context_parallel.programs.attention",
        old="torch.maximum(largest, scores.detach().amax(-1, keepdim=True))",
        new="torch.maximum(largest, scores.detach().amax())",
    ),
    # The all-gather of keys and values, and what is raced.
    Fault(
        name="gathered tails in the order of the ranks",
        module=PROGRAMS,
        old="[of_rank[1] for of_rank in reversed(of_ranks)]",
        new="[of_rank[1] for of_rank in of_ranks]",
    ),
    Fault(
        name="gathered keys of which queries see those after them too",
        module=PROGRAMS,
        old="mask = causal_lower_right(tokens, until) if causal and tokens < until else None",
        new="mask = None",
    ),
    Fault(
        name="gathered keys whose mask begins at the first key",
        module=PROGRAMS,
        old="mask = causal_lower_right(tokens, until) if causal and tokens < until else None",
        new="mask = torch.ones(tokens, until, dtype=torch.bool, device=own.device).tril() if causal and tokens < until "
        "else None",
    ),
    Fault(
        name="gathered keys without the rank's own part",
        module=PROGRAMS,
        old="until = (number + 1) * tokens if causal",
        new="until = max(1, number) * tokens if causal",
    ),
    Fault(
        name="gathered keys that send no gradient back",
        module=PROGRAMS,
        old="all_gather_tensor_autograd(own.contiguous(), 0, ctx.group)",
        new="all_gather_tensor_autograd(own.detach().contiguous(), 0, ctx.group)",
    ),
    Fault(
        name="raced rows that each rank keeps for itself",
        module=RACING,
        old="        dist.all_reduce(found, group=ctx.group)\n",
        new="",
    ),
    Fault(
        name="raced attention with the first batch at every step",
        module=PROGRAMS,
        old='steps = [{"query": query, "key": key, "value": value, "grad": grad}, *later]',
        new='steps = [{"query": query, "key": key, "value": value, "grad": grad}]',
    ),
    Fault(
        name="probabilities that are rounded to the inputs' dtype",
        module=PROGRAMS,
        old="exponentials @ some_values",
        new="exponentials.to(held.dtype).to(dtype) @ some_values",
    ),
    Fault(
        name="a largest score that begins at zero",
        module=PROGRAMS,
        old="largest = query.new_full((*query.shape[:-1], 1), -math.inf)",
        new="largest = query.new_zeros((*query.shape[:-1], 1))",
    ),
    Fault(
        name="Ulysses whose key heads are repeated in another order",
        module=PROGRAMS,
        old="    output = functional.scaled_dot_product_attention(\n"
        "        query, key, value, is_causal=causal, enable_gqa=query.shape[1] != key.shape[1]\n"
        "    )\n    return all_to_all(ctx, output[:, :, gathered], split=SEQUENCE, join=1)",
        new="    key, value = (each.repeat(1, query.shape[1] // key.shape[1], 1, 1) for each in (key, "
        "value))\n"
        "    output = functional.scaled_dot_product_attention(query, key, value, is_causal=causal)\n"
        "    return all_to_all(ctx, output[:, :, gathered], split=SEQUENCE, join=1)",
    ),
    Fault(
        name="ring attention summed in the inputs' own dtype",
        module="suites.context_parallel.programs.attention",
        old="""    dtype = torch.promote_types(query.dtype, torch.float32)
    groups = query.shape[1] // key.shape[1]""",
        new="""    dtype = query.dtype
    groups = query.shape[1] // key.shape[1]""",
    ),
    Fault(
        name="operations counted as if nothing were masked",
        module=RACING,
        old="return 3.0 * 2 * tokens**2 * self.heads * self.features",
        new="return 3.0 * 4 * tokens**2 * self.heads * self.features",
    ),
    Fault(
        name="the rotation that is asked for is not set",
        module="suites.context_parallel.programs.attention",
        old="        set_rotate_method(rotation)\n",
        new="",
        gpus=True,
    ),
    Fault(
        name="ring attention adds gradients in the inputs' dtype",
        module="torch.distributed.tensor.experimental._context_parallel._attention",
        old="accum_dtype = torch.float32 if _cp_options.convert_to_f32 else query.dtype",
        new="accum_dtype = query.dtype",
        gpus=True,
    ),
    Fault(
        name="Ulysses' bytes as two ranks send them",
        module=RACING,
        old="return 2 * (ranks - 1) * (tokens // ranks) * of_token // ranks",
        new="return 2 * (tokens // ranks) * of_token // ranks",
    ),
    Fault(
        name="gathered bytes as two ranks send them",
        module=RACING,
        old="return 2 * (ranks - 1) * tokens // ranks * 2",
        new="return 2 * tokens // ranks * 2",
    ),
    Fault(
        name="rows that leave out the last token of a long sequence",
        module=RACING,
        old="return torch.arange(tokens - 1, -1, -stride).flip(0)",
        new="return torch.arange(0, tokens, stride)",
    ),
    Fault(
        name="rows that are a power of two apart",
        module=RACING,
        old="stride = max(1, tokens // ROWS) | 1",
        new="stride = max(1, tokens // ROWS)",
    ),
    Fault(
        name="raced batches that are all the same",
        module=RACING,
        old="        for _ in range(BATCHES)\n    ]",
        new="        for _ in range(BATCHES)\n        if generator.manual_seed(seed)\n    ]",
    ),
    Fault(
        name="a ring that waits for what it sends alone",
        module="suites.context_parallel.programs.attention",
        old=(
            "    for work in dist.batch_isend_irecv([sent, dist.P2POp(dist.irecv, received, source, "
            "ctx.group)]):\n"
            "        work.wait()\n"
        ),
        new="    dist.batch_isend_irecv([sent, dist.P2POp(dist.irecv, received, source, ctx.group)])[0].wait()\n",
    ),
    Fault(
        name="keys that are repeated before they are gathered",
        module="suites.context_parallel.programs.attention",
        old="_all_tokens(ctx, tensor, parts) for tensor in (key, value)",
        new=(
            "_all_tokens(ctx, tensor.repeat_interleave(query.shape[1] // key.shape[1], 1), parts) for "
            "tensor in (key, value)"
        ),
    ),
    Fault(
        name="keys that are gathered in float32",
        module="suites.context_parallel.programs.attention",
        old="_all_tokens(ctx, tensor, parts) for tensor in (key, value)",
        new="_all_tokens(ctx, tensor.float(), parts).to(tensor.dtype) for tensor in (key, value)",
    ),
    Fault(
        name="ordered Ulysses whose keys are repeated before they are exchanged",
        module="suites.context_parallel.programs.attention",
        old="split=1, join=SEQUENCE) for tensor in (query, key, value))",
        new=(
            "split=1, join=SEQUENCE)\n"
            "        for tensor in (query, *(each.repeat_interleave(query.shape[1] // key.shape[1], 1) "
            "for each in (key, value))))"
        ),
    ),
    Fault(
        name="a race in which every way but torch's ring gathers",
        module=RACING,
        old='    elif way == "all-gather":',
        new="    elif way:",
    ),
    Fault(
        name="a race in which Ulysses is the ring",
        module=RACING,
        old='ring_attention if way == "ring by hand" else ordered_ulysses_attention',
        new="ring_attention",
    ),
    Fault(
        name="a ring whose softmax is added up in the inputs' dtype",
        module=PROGRAMS,
        old="    dtype = torch.promote_types(query.dtype, torch.float32)\n",
        new="    dtype = query.dtype\n",
    ),
    Fault(
        name="heads of keys tiled instead of repeated",
        module=PROGRAMS,
        old=".repeat_interleave(groups, dim=2)",
        new=".repeat(1, 1, groups, 1, 1)",
    ),
    Fault(
        name="a ring hop that waits for its send alone",
        module=PROGRAMS,
        old=(
            "    for work in dist.batch_isend_irecv([sent, dist.P2POp(dist.irecv, received, source, ctx.group)]):\n"
            "        work.wait()\n"
        ),
        new=(
            "    # Coalesced: the first work is that of both.\n"
            "    dist.batch_isend_irecv([sent, dist.P2POp(dist.irecv, received, source, ctx.group)])[0].wait()\n"
        ),
    ),
    Fault(
        name="query heads in turn instead of in groups",
        module=PROGRAMS,
        old="        some_keys, some_values = held.to(dtype).repeat_interleave(groups, dim=2)\n",
        new="        some_keys, some_values = held.to(dtype).repeat(1, 1, groups, 1, 1)\n",
    ),
    Fault(
        name="the order of the tokens instead of its inverse",
        module=PROGRAMS,
        old="    return all_to_all(ctx, output[:, :, gathered], split=SEQUENCE, join=1)\n",
        new="    return all_to_all(ctx, output[:, :, order], split=SEQUENCE, join=1)\n",
    ),
)
