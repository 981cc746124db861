"""Faults of the subject health."""

from __future__ import annotations

from benchmarks.mutants.fault import Fault

PROGRAMS = "suites.health.programs.straining"
SOAK = "suites.health.programs.soak"
REFERENCE = "suites.health.reference"

FAULTS: tuple[Fault, ...] = (
    Fault(
        name="a sum that is not taken",
        module=PROGRAMS,
        old="        dist.all_reduce(total)\n",
        new="",
    ),
    Fault(
        name="a sum of the last batch's sum",
        module=PROGRAMS,
        old="        total.copy_(addends)\n",
        new="        total.copy_(addends) if len(taken) == 1 else None\n",
    ),
    Fault(
        name="a product of one element too few",
        module=PROGRAMS,
        old="            torch.mm(a, b, out=product)\n",
        new="            torch.mm(a, b, out=product)\n            product[-1, -1] = 0.5\n",
    ),
    Fault(
        name="other matrices on another rank",
        module=PROGRAMS,
        old="a, b = (matrix(width, dtype, seed).to(ctx.device) for seed in (1, 2))",
        new="a, b = (matrix(width, dtype, seed + ctx.rank).to(ctx.device) for seed in (1, 2))",
    ),
    Fault(
        name="the load ends at once",
        module=PROGRAMS,
        old="time.monotonic() + seconds\n",
        new="time.monotonic()\n",
    ),
    Fault(
        name="a digest that does not know places",
        module="suites.shared.bits",
        old="    return int((bits * places).sum())\n",
        new="    return int(bits.sum())\n",
    ),
    Fault(
        name="a rate that counts the warm-up in",
        module=REFERENCE,
        old="later = strain.seconds[len(strain.seconds) // 2 :]",
        new="later = strain.seconds",
    ),
    Fault(
        name="the odd rank is sought among the fast ones",
        module=REFERENCE,
        old="if rate < (1 - ODD) * usual",
        new="if rate > (1 + ODD) * usual",
    ),
    Fault(
        name="wrong products of one GPU are forgiven",
        module=REFERENCE,
        old="        if strain.wrong_products:\n",
        new="        if strain.wrong_products > 1:\n",
    ),
    Fault(
        name="products of which one in eight is compared",
        module=PROGRAMS,
        old="            wrong[0] += (bits_of(product) != bits_of(first)).any()\n",
        new="        wrong[0] += (bits_of(product) != bits_of(first)).any()\n",
    ),
    Fault(
        name="the seconds of products include the sum, in which all wait for the slowest",
        module="suites.health.programs.straining",
        old="""        taken.append(_seconds(begun, _now(ctx)))
        total.copy_(addends)
        dist.all_reduce(total)
        wrong[1] += (bits_of(total) != bits_of(summed)).any()""",
        new="""        total.copy_(addends)
        dist.all_reduce(total)
        taken.append(_seconds(begun, _now(ctx)))
        wrong[1] += (bits_of(total) != bits_of(summed)).any()""",
    ),
    Fault(
        name="each batch is timed from the start of the load",
        module="suites.health.programs.straining",
        old="    while not over.item():\n        begun = _now(ctx)\n",
        new="    begun = _now(ctx)\n    while not over.item():\n",
    ),
    Fault(
        name="the rate of the best batch",
        module="suites.health.reference",
        old="statistics.median(later))",
        new="min(later))",
    ),
    Fault(
        name="the rate of a mean batch, which one hiccup drags down",
        module="suites.health.reference",
        old="statistics.median(later))",
        new="statistics.fmean(later))",
    ),
    Fault(
        name="the first rank's product is taken for the usual one",
        module="suites.health.reference",
        old="most = statistics.mode(strain.digest for strain in strains)",
        new="most = strains[0].digest",
    ),
    Fault(
        name="only the last batch's sum counts",
        module="suites.health.programs.straining",
        old="wrong[1] += (",
        new="wrong[1] = (",
    ),
    Fault(
        name="one GPU that is fast makes all others odd",
        module="suites.health.reference",
        old="usual = statistics.median_high(by_rank)",
        new="usual = max(by_rank)",
    ),
    Fault(
        name="products compared with themselves",
        module=PROGRAMS,
        old="    product, first = torch.empty_like(a), torch.mm(a, b)\n",
        new="    product = first = torch.mm(a, b)\n",
    ),
    Fault(
        name="products' seconds that include the sum",
        module=PROGRAMS,
        old=(
            "        taken.append(_seconds(begun, _now(ctx)))\n"
            "        total.copy_(addends)\n"
            "        dist.all_reduce(total)\n"
        ),
        new=(
            "        total.copy_(addends)\n"
            "        dist.all_reduce(total)\n"
            "        taken.append(_seconds(begun, _now(ctx)))\n"
        ),
    ),
    Fault(
        name="a soak that looks at the first result of each kind alone",
        module=SOAK,
        old="    return (bits_of(results) != bits_of(right)).flatten(1).any(1).sum()\n",
        new="    return (bits_of(results) != bits_of(right)).flatten(1).any(1)[:1].sum()\n",
    ),
    Fault(
        name="a soak that compares no copies",
        module=SOAK,
        old="            wrong[2] += _differing(copies, addends)\n",
        new="            wrong[2] += 0\n",
    ),
    Fault(
        name="a soak that forgets the sums of earlier turns",
        module=SOAK,
        old="            wrong[1] += _differing(sums, summed)\n",
        new="            wrong[1] = _differing(sums, summed)\n",
    ),
    Fault(
        name="a soak that counts twice what it compared",
        module=SOAK,
        old="            turns += 1\n",
        new="            turns += 2\n",
    ),
    Fault(
        name="the claimed rate is ten times smaller than what is seen",
        module=REFERENCE,
        old="    return -math.expm1(math.log(MISSED) / compared)\n",
        new="    return -math.expm1(math.log(MISSED) / compared) / 10\n",
    ),
)
