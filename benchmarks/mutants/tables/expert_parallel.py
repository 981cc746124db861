"""Faults of the subject expert_parallel."""

from __future__ import annotations

from benchmarks.mutants.fault import Fault

PROGRAMS = "suites.expert_parallel.programs.layer"
EXCHANGE = "suites.expert_parallel.programs.exchange"
RACING = "suites.expert_parallel.programs.racing"

FAULTS: tuple[Fault, ...] = (
    Fault(
        name="rows that come back shifted by one",
        module=PROGRAMS,
        old="return all_to_all_single_autograd(made[order.argsort()], sends, receives, ctx.group)",
        new="return all_to_all_single_autograd(made[order.argsort()], sends, receives, ctx.group).roll(1, 0)",
    ),
    Fault(
        name="rows that come back in the order of the experts, not of their senders",
        module=PROGRAMS,
        old="all_to_all_single_autograd(made[order.argsort()],",
        new="all_to_all_single_autograd(made[order],",
    ),
    Fault(
        name="rows that are left in the order in which they arrived",
        module=PROGRAMS,
        old="    order = expert.argsort(stable=True)\n    made",
        new="    order = torch.arange(len(expert), device=rows.device)\n    made",
    ),
    Fault(
        name="counts of the experts of the rank itself for those that arrive",
        module=PROGRAMS,
        old="made = experts_forward(parameters, arrived[order], counts.sum(0).tolist())",
        new="made = experts_forward(parameters, arrived[order], sorted(counts.sum(0).tolist()))",
    ),
    Fault(
        name="tokens whose rows cross the links in bfloat16",
        module=PROGRAMS,
        old="    arrived = all_to_all_single_autograd(rows, receives, sends, ctx.group)\n",
        new="    arrived = all_to_all_single_autograd(rows.bfloat16(), receives, sends, ctx.group).to(rows.dtype)\n",
    ),
    Fault(
        name="tokens whose rows cross the links in float32",
        module=PROGRAMS,
        old="    arrived = all_to_all_single_autograd(rows, receives, sends, ctx.group)\n",
        new="    arrived = all_to_all_single_autograd(rows.float(), receives, sends, ctx.group).to(rows.dtype)\n",
    ),
    Fault(
        name="outputs that come back in half precision",
        module=PROGRAMS,
        old="return all_to_all_single_autograd(made[order.argsort()], sends, receives, ctx.group)",
        new="return all_to_all_single_autograd(made[order.argsort()].bfloat16(), sends, receives, ctx.group)"
        ".to(made.dtype)",
    ),
    Fault(
        name="tokens without a gradient through the exchange",
        module=PROGRAMS,
        old="    arrived = all_to_all_single_autograd(rows, receives, sends, ctx.group)\n",
        new="    arrived = all_to_all_single_autograd(rows.detach(), receives, sends, ctx.group)\n",
    ),
    Fault(
        name="an exchange that is made twice",
        module=PROGRAMS,
        old="    arrived = all_to_all_single_autograd(rows, receives, sends, ctx.group)\n",
        new="    all_to_all_single_autograd(rows.detach(), receives, sends, ctx.group)\n"
        "    arrived = all_to_all_single_autograd(rows, receives, sends, ctx.group)\n",
    ),
    Fault(
        name="capacity that is not kept",
        module=PROGRAMS,
        old="    kept = order[place < capacity]\n",
        new="    kept = order\n    capacity = tokens * k\n",
    ),
    Fault(
        name="capacity that is one too small",
        module=PROGRAMS,
        old="    kept = order[place < capacity]\n",
        new="    capacity = max(1, capacity - 1)\n    kept = order[place < capacity]\n",
    ),
    Fault(
        name="second choices before first ones",
        module=PROGRAMS,
        old="    by_priority = chosen.T.reshape(-1)  # all first choices, then all second ones\n",
        new="    by_priority = chosen.flip(1).T.reshape(-1)\n",
    ),
    Fault(
        name="tokens that are taken in the order of the tokens, not of their choices",
        module=PROGRAMS,
        old="    return Routing(kept % tokens, kept // tokens, counts.clamp(max=capacity))",
        new="    return Routing(kept // k, kept % k, counts.clamp(max=capacity))",
    ),
    Fault(
        name="the largest weight for all choices",
        module=PROGRAMS,
        old="weights[routing.token, routing.choice].unsqueeze(-1)",
        new="weights[routing.token, 0].unsqueeze(-1)",
    ),
    Fault(
        name="softmax over all experts, not over the chosen ones",
        module=PROGRAMS,
        old="    weights, chosen = GATES[gate](ranked[:, :k]), by_score[:, :k]\n",
        new="    weights, chosen = GATES[gate](ranked)[:, :k], by_score[:, :k]\n",
    ),
    Fault(
        name="a gate's softmax without the largest score subtracted",
        module=PROGRAMS,
        old="    return scores.softmax(dim=-1)\n",
        new="    return scores.exp() / scores.exp().sum(-1, keepdim=True)\n",
    ),
    Fault(
        name="weights of the gate that have no gradient",
        module=PROGRAMS,
        old="weights[routing.token, routing.choice].unsqueeze(-1)",
        new="weights.detach()[routing.token, routing.choice].unsqueeze(-1)",
    ),
    Fault(
        name="experts' outputs that replace each other instead of adding up",
        module=PROGRAMS,
        old="dtype=weighted.dtype).index_add(0, routing.token, weighted)",
        new="dtype=weighted.dtype).index_copy(0, routing.token, weighted)",
    ),
    Fault(
        name="a gate's gradient that each rank keeps to itself",
        module=PROGRAMS,
        old='    dist.all_reduce(gradient_of(parameters["gate"]))\n',
        new="    pass\n",
    ),
    Fault(
        name="a mean of the gate's gradients for their sum",
        module=PROGRAMS,
        old='    dist.all_reduce(gradient_of(parameters["gate"]))\n',
        new='    dist.all_reduce(gradient_of(parameters["gate"]))\n'
        '    gradient_of(parameters["gate"]).div_(ctx.world_size)\n',
    ),
    Fault(
        name="experts' gradients that are averaged over ranks that hold other experts",
        module=PROGRAMS,
        old='    dist.all_reduce(gradient_of(parameters["gate"]))\n',
        new="    for parameter in parameters.values():\n        dist.all_reduce(gradient_of(parameter))\n",
    ),
    Fault(
        name="the first step's routing at every step",
        module=PROGRAMS,
        old="def route(chosen: torch.Tensor, experts: int, capacity: int) -> Routing:",
        new="STALE = {}\n\n\ndef route(chosen: torch.Tensor, experts: int, capacity: int) -> Routing:\n"
        "    key = chosen.shape, experts, capacity\n    if key not in STALE:\n"
        "        STALE.clear()\n        STALE[key] = _route(chosen, experts, capacity)\n    return STALE[key]\n\n\n"
        "def _route(chosen: torch.Tensor, experts: int, capacity: int) -> Routing:",
    ),
    Fault(
        name="the first step's tokens at every step",
        module=PROGRAMS,
        old="        now, of_ranks = next(coming)\n",
        new="        now, of_ranks = next(coming)[0], each\n",
    ),
    Fault(
        name="experts of the rank's mirror image",
        module=PROGRAMS,
        old="own = slice(ctx.rank * experts // ctx.world_size, (ctx.rank + 1) * experts // ctx.world_size)",
        new="mirror = ctx.world_size - 1 - ctx.rank\n"
        "        own = slice(mirror * experts // ctx.world_size, (mirror + 1) * experts // ctx.world_size)",
    ),
    Fault(
        name="ReLU whose output is rounded to bfloat16",
        module=PROGRAMS,
        old="nn.functional.linear(nn.functional.linear(part, first).relu(), second)",
        new="nn.functional.linear(nn.functional.linear(part, first).relu().bfloat16().to(part.dtype), second)",
    ),
    Fault(
        name="second weights of the neighbouring expert",
        module=PROGRAMS,
        old='parameters["first"], parameters["second"], strict=True)',
        new='parameters["first"], parameters["second"].roll(1, 0), strict=True)',
    ),
    Fault(
        name="softmax over all experts, not the chosen ones",
        module="suites.expert_parallel.programs.layer",
        old="GATES[gate](ranked[:, :k])",
        new="GATES[gate](ranked)[:, :k]",
    ),
    Fault(
        name="a token's later choice replaces its first one's output",
        module="suites.expert_parallel.programs.layer",
        old=".index_add(0, routing.token, weighted)",
        new=".index_copy(0, routing.token, weighted)",
    ),
    Fault(
        name="capacity is given out token by token, not to first choices first",
        module="suites.expert_parallel.programs.layer",
        old=(
            "    by_priority = chosen.T.reshape(-1)  # all first choices, then all second ones\n"
            "    order = by_priority.argsort(stable=True)\n"
            "    counts = torch.bincount(by_priority, minlength=experts)\n"
            "    begins = counts.cumsum(0) - counts\n"
            "    place = torch.arange(tokens * k, device=chosen.device) - begins[by_priority[order]]\n"
            "    kept = order[place < capacity]\n"
            "    return Routing(kept % tokens, kept // tokens, counts.clamp(max=capacity))\n"
        ),
        new=(
            "    by_priority = chosen.reshape(-1)  # a token's choices one after the other\n"
            "    order = by_priority.argsort(stable=True)\n"
            "    counts = torch.bincount(by_priority, minlength=experts)\n"
            "    begins = counts.cumsum(0) - counts\n"
            "    place = torch.arange(tokens * k, device=chosen.device) - begins[by_priority[order]]\n"
            "    kept = order[place < capacity]\n"
            "    return Routing(kept // k, kept % k, counts.clamp(max=capacity))\n"
        ),
    ),
    Fault(
        name="softmax over the scores of all experts instead of those chosen",
        module="suites.expert_parallel.programs.layer",
        old="GATES[gate](ranked[:, :k]), by_score[:, :k]",
        new="GATES[gate](ranked)[:, :k], by_score[:, :k]",
    ),
    Fault(
        name="backward does not wait for its all-to-all: gradients may be used before they are there",
        module="torch.distributed._functional_collectives",
        old=(
            "        output_split_sizes,  # Reversed\n"
            "        group_name,\n"
            "    )\n"
            "    return wait_tensor(output), None, None, None\n"
        ),
        new=(
            "        output_split_sizes,  # Reversed\n        group_name,\n    )\n    return output, None, None, None\n"
        ),
    ),
    Fault(
        name="capacity by token not by choice",
        module="suites.expert_parallel.programs.layer",
        old=(
            "    by_priority = chosen.T.reshape(-1)  # all first choices, then all second ones\n"
            "    order = by_priority.argsort(stable=True)\n"
            "    counts = torch.bincount(by_priority, minlength=experts)\n"
            "    begins = counts.cumsum(0) - counts\n"
            "    place = torch.arange(tokens * k, device=chosen.device) - begins[by_priority[order]]\n"
            "    kept = order[place < capacity]\n"
            "    return Routing(kept % tokens, kept // tokens, counts.clamp(max=capacity))"
        ),
        new=(
            "    by_priority = chosen.reshape(-1)\n"
            "    order = by_priority.argsort(stable=True)\n"
            "    counts = torch.bincount(by_priority, minlength=experts)\n"
            "    begins = counts.cumsum(0) - counts\n"
            "    place = torch.arange(tokens * k, device=chosen.device) - begins[by_priority[order]]\n"
            "    kept = order[place < capacity]\n"
            "    return Routing(kept // k, kept % k, counts.clamp(max=capacity))"
        ),
    ),
    Fault(
        name="gate normalized over all experts",
        module="suites.expert_parallel.programs.layer",
        old="weights, chosen = GATES[gate](ranked[:, :k]), by_score[:, :k]",
        new="weights, chosen = GATES[gate](ranked)[:, :k], by_score[:, :k]",
    ),
    Fault(
        name="gate gradient averaged",
        module="suites.expert_parallel.programs.layer",
        old='    dist.all_reduce(gradient_of(parameters["gate"]))',
        new='    dist.all_reduce(gradient_of(parameters["gate"]).div_(dist.get_world_size()))',
    ),
    # Padded and exact splits, and chunks.
    Fault(
        name="places without a row that send the first row",
        module=EXCHANGE,
        old="torch.cat([rows, rows.new_zeros(1, rows.shape[1])]).index_select(0, index)",
        new="torch.cat([rows, rows[:1] if len(rows) else rows.new_zeros(1, rows.shape[1])]).index_select(0, index)",
    ),
    Fault(
        name="padded rows that are taken for expert by expert, and come rank by rank",
        module=EXCHANGE,
        old="arrived.view(ranks, local, rows, width).transpose(0, 1)",
        new="arrived.view(local, ranks, rows, width)",
    ),
    Fault(
        name="a token whose first choice alone gives its input a gradient",
        module=EXCHANGE,
        old="return taken.view(*back.shape, taken.shape[1]).sum(1), None, None",
        new="return taken.view(*back.shape, taken.shape[1])[:, 0], None, None",
    ),
    Fault(
        name="places by token, not by choice",
        module=EXCHANGE,
        old="    by_priority = chosen.T.reshape(-1)\n",
        new="    by_priority = chosen.flip(1).T.reshape(-1)\n",
    ),
    Fault(
        name="padded rows that cross the links twice",
        module=EXCHANGE,
        old="            arrived.append(all_to_all_single_autograd(part, receives, sends, ctx.group))\n",
        new="            all_to_all_single_autograd(part.detach(), receives, sends, ctx.group)\n"
        "            arrived.append(all_to_all_single_autograd(part, receives, sends, ctx.group))\n",
    ),
    Fault(
        name="an exchange that rounds rows to bfloat16",
        module=EXCHANGE,
        old="            arrived.append(all_to_all_single_autograd(part, receives, sends, ctx.group))\n",
        new="            arrived.append(\n"
        "                all_to_all_single_autograd(part.bfloat16(), receives, sends, ctx.group).to(part.dtype)\n"
        "            )\n",
    ),
    # What is raced.
    Fault(
        name="raced tokens of the first batch at every step",
        module=RACING,
        old="[batch_of(ctx, sizes, routing, ctx.rank, number) for number in range(BATCHES)]",
        new="[batch_of(ctx, sizes, routing, ctx.rank, 0) for number in range(BATCHES)]",
    ),
    Fault(
        name="raced experts that are the first rank's on every rank",
        module=RACING,
        old="expert(ctx, sizes, ctx.rank * local + index, seed)",
        new="expert(ctx, sizes, index, seed)",
    ),
    Fault(
        name="skewed routing that is balanced",
        module=RACING,
        old="    likely = 1 / torch.arange(1, sizes.experts + 1, dtype=torch.float64)\n",
        new="    likely = torch.ones(sizes.experts, dtype=torch.float64)\n",
    ),
    Fault(
        name="chunks that leave out the rest of the capacity",
        module=EXCHANGE,
        old="    width = -(-capacity // chunks)\n    starts",
        new="    width = max(1, capacity // chunks)\n    starts",
    ),
    Fault(
        name="a token that chooses an expert twice",
        module=RACING,
        old="sizes.k, generator=generator)",
        new="sizes.k, replacement=True, generator=generator)",
    ),
    Fault(
        name="a dropped token that is passed through",
        module=PROGRAMS,
        old="    return torch.zeros_like(x, dtype=weighted.dtype)",
        new="    kept = torch.zeros(len(x), dtype=torch.bool, device=x.device).index_fill(0, "
        "routing.token, True)\n"
        "    return x.index_fill(0, kept.nonzero()[:, 0], 0)",
    ),
    Fault(
        name="places given by token, not by choice",
        module="suites.expert_parallel.programs.exchange",
        old="""    by_priority = chosen.T.reshape(-1)
    order = by_priority.argsort(stable=True)
    counts = torch.zeros(experts, dtype=torch.int64, device=chosen.device)
    counts.index_add_(0, by_priority, torch.ones_like(by_priority))
    begins = counts.cumsum(0) - counts
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order), device=chosen.device) - begins[by_priority[order]]
    return place.view(chosen.T.shape).T, counts""",
        new="""    by_priority = chosen.reshape(-1)
    order = by_priority.argsort(stable=True)
    counts = torch.zeros(experts, dtype=torch.int64, device=chosen.device)
    counts.index_add_(0, by_priority, torch.ones_like(by_priority))
    begins = counts.cumsum(0) - counts
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order), device=chosen.device) - begins[by_priority[order]]
    return place.view(chosen.shape), counts""",
    ),
    Fault(
        name="a capacity that knows of one choice a token",
        module=RACING,
        old="return int(self.headroom * self.tokens * self.k / self.experts)",
        new="return int(self.headroom * self.tokens / self.experts)",
    ),
    Fault(
        name="rows are taken choice by choice",
        module="suites.expert_parallel.programs.exchange",
        old="rows = moved(x, assignment // k, position.view(tokens, k))",
        new="rows = moved(x, assignment % tokens, position.view(tokens, k))",
    ),
    Fault(
        name="operations of one of an expert's two products",
        module=RACING,
        old="return 3.0 * 2 * 2 * assignments",
        new="return 3.0 * 2 * assignments",
    ),
    Fault(
        name="rows of the first rank for those of every rank",
        module=RACING,
        old="chosen_experts(sizes, routing, rank, number).reshape(-1) for rank",
        new="chosen_experts(sizes, routing, 0, number).reshape(-1) for rank",
    ),
    Fault(
        name="raced tokens that are alike on all ranks",
        module=RACING,
        old="manual_seed(1000 * rank + number)\n\n    def",
        new="manual_seed(number)\n\n    def",
    ),
    Fault(
        name="skewed routing that is alike on all ranks",
        module=RACING,
        old="manual_seed(1000 * rank + number)\n    likely",
        new="manual_seed(number)\n    likely",
    ),
    Fault(
        name="raced experts that are all alike",
        module=RACING,
        old="manual_seed(seed * sizes.experts + number)",
        new="manual_seed(seed)",
    ),
    Fault(
        name="a token's bytes at two each, whatever its dtype",
        module=RACING,
        old="return self.width * self.dtype.itemsize",
        new="return self.width * 2",
    ),
    Fault(
        name="scores of the gate in the tokens' 16 bits",
        module=PROGRAMS,
        old="    scores = nn.functional.linear(x.to(exact), parameter.to(exact))\n",
        new="    scores = nn.functional.linear(x, parameter).to(exact)\n",
    ),
    Fault(
        name="weights of the gate that are rounded to the tokens' 16 bits",
        module=PROGRAMS,
        old="    weights, chosen = GATES[gate](ranked[:, :k]), by_score[:, :k]\n",
        new="    weights, chosen = GATES[gate](ranked[:, :k]).to(x.dtype), by_score[:, :k]\n",
    ),
    Fault(
        name="experts' outputs that are added up in 16 bits",
        module=PROGRAMS,
        old="torch.zeros_like(x, dtype=weighted.dtype).index_add(0, routing.token, weighted).to(x.dtype)",
        new="torch.zeros_like(x).index_add(0, routing.token, weighted.to(x.dtype))",
    ),
    Fault(
        name="rows that are multiplied by rounded weights when they are back",
        module=EXCHANGE,
        old="return (each * weights.unsqueeze(-1)).sum(1)",
        new="return (each * weights.unsqueeze(-1).to(each.dtype)).sum(1)",
    ),
    Fault(
        name="exact splits that send every place all the same",
        module=EXCHANGE,
        old="held = most.expand(chunks, experts) if padded else (",
        new="held = most.expand(chunks, experts) if padded or chunks == 1 else (",
    ),
    Fault(
        name="later chunks send places that no assignment has",
        module=EXCHANGE,
        old="(counts.clamp(max=capacity) - starts).clamp(min=0)",
        new="(counts.clamp(max=capacity) + starts).clamp(min=0)",
    ),
    Fault(
        name="gate weights rounded before the sum",
        module=EXCHANGE,
        old="    return (each * weights.unsqueeze(-1)).sum(1).to(x.dtype)\n",
        new="    return (each * weights.to(x.dtype).unsqueeze(-1)).sum(1)\n",
    ),
    Fault(
        name="experts dealt out to ranks in turn",
        module=RACING,
        old="own = [expert(ctx, sizes, ctx.rank * local + index, seed) for index in range(local)]",
        new="own = [expert(ctx, sizes, index * ctx.world_size + ctx.rank, seed) for index in range(local)]",
    ),
    Fault(
        name="weights of the gate rounded to 16 bits",
        module=EXCHANGE,
        old="    return (each * weights.unsqueeze(-1)).sum(1).to(x.dtype)\n",
        new="    return (each * weights.to(x.dtype).unsqueeze(-1)).sum(1).to(x.dtype)\n",
    ),
)
