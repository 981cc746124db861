"""Accepting the hosts of a cluster: alone, in pairs round by round, all together; what is slow is named.

pytest suites/multi_node/test_hosts.py --cluster auto --gpus auto
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections import Counter
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from pytest_gpuperf import Context, GiB, Metric, MiB, Perf, Ranks
from pytest_gpuperf.features.fleet import tournament
from pytest_gpuperf.features.fleet.acceptance import Slow
from suites.multi_node import reference
from suites.multi_node.programs import hosts
from suites.multi_node.programs.hosts import Drag, Load, Rounds, Seen
from suites.multi_node.reference import Lossy
from suites.shared.delays import DELAYS, Moving, moved_by
from suites.shared.traffic import Traffic

FULL = Load(
    width=8192,
    dtype=torch.bfloat16,
    copied=GiB,
    linked=256 * MiB,
    sent=32 * MiB,
    summed=64 * MiB,
    samples=8,
    repeats=2,
)
ON_CPUS = Load(
    width=1024,
    dtype=torch.float32,
    copied=64 * MiB,
    linked=MiB,
    sent=4 * MiB,
    summed=MiB,
    samples=5,
    repeats=5,  # a product takes 13 ms on a fast core: other work often waits until it has ended
)
"""Some tens of milliseconds on one core: what shares the core gets its turns within a sample."""
SURVEYS = 3
"""A part is slow if so many surveys name it: what else runs now and then on a host's cores is elsewhere next time."""
SMALL = Load(width=16, dtype=torch.float32, copied=4096, linked=5120, sent=6144, summed=7168, samples=3, repeats=1)
"""No two sizes are alike: one that is taken for another is seen."""
ONE_NODE = "the cluster has one node, and pairs are of two: start Ray on another one"
HELD_UP = 0.05
"""Seconds, of each step, on a clock that only such delays move."""
USUAL = 0.001
"""Seconds of all steps on that clock."""


def num_nodes(ctx: Context) -> int:
    return ctx.num_nodes


def surveyed(ranks: Ranks, nodes: int, load: Load, drag: Drag | None = None) -> list[Seen]:
    """What each rank has measured, in a tournament of so many nodes."""
    numbers = {str(node): node for node in range(nodes)}
    played = tournament.plan_rounds(list(numbers)) if nodes > 1 else []
    rounds: Rounds = [[(numbers[one], numbers[other]) for one, other in pairs] for pairs in played]
    if drag is not None:
        return ranks.run(survey_by_moved_clock, nodes=nodes, rounds=rounds, load=load, drag=drag)
    return ranks.run(hosts.survey, nodes=nodes, rounds=rounds, load=load)


def survey_by_moved_clock(ctx: Context, *, drag: Drag, **arguments: Any) -> Seen:
    """A survey whose time goes by with its delays and meetings only, so that a busy host holds up nothing else."""
    others = dataclasses.replace(drag, others=drag.others or USUAL)
    meetings = Moving(Context, "barrier", lambda _: 1000.0)  # which no figure may have a part of
    with mock.patch.object(hosts, "_seconds", host_seconds), moved_by(DELAYS, meetings):
        return hosts.survey(ctx, drag=others, **arguments)


def host_seconds(ctx: Context, steps: Callable[[], None]) -> float:
    """Return the seconds of steps by the host's clock, on GPUs too."""
    began = time.perf_counter()
    steps()
    return time.perf_counter() - began


Parts = tuple[Slow | Lossy, ...]
Record = Callable[[str, object], None]


def accepted(found: Parts, again: Callable[[], Parts], record: Record) -> Parts:
    """The parts that are slow in this survey and in those after it; ``accept --cluster`` reads them from the record."""
    for _ in range(SURVEYS - 1):
        if not found:
            break
        named = {(one.part, one.name, one.figure) for one in again()}
        found = tuple(one for one in found if (one.part, one.name, one.figure) in named)
    record("slow", "\n".join(map(str, found)))
    return found


def found_on_cpus(seen: list[Seen]) -> Parts:
    """The lossy parts, and the slow ones but those that others may have slowed down for a moment."""
    slow = [one for one in reference.found_slow(ON_CPUS, seen) if reference.is_always_slow(one, seen)]
    return (*reference.found_lossy(seen), *slow)


@pytest.mark.skipif("not config.getoption('--accept-cpus')", reason="needs idle hosts: pass --accept-cpus")
@pytest.mark.ranks(nodes="all", per_node=1, device="cpu", timeout=1800)
def test_acceptance_on_cpus(ranks: Ranks, record_property: Record) -> None:
    """Every host of a cluster without GPUs: wrong results and slow parts fail the test by name."""
    nodes = ranks.world_size
    if nodes == 1:
        pytest.skip(ONE_NODE)
    seen = surveyed(ranks, nodes, ON_CPUS)
    wrong = list(reference.differing(seen))
    assert not wrong, "\n".join(wrong)
    slow = accepted(found_on_cpus(seen), lambda: found_on_cpus(surveyed(ranks, nodes, ON_CPUS)), record_property)
    assert not slow, "\n".join(map(str, slow))


@pytest.mark.perf
@pytest.mark.ranks(nodes="all")
def test_acceptance(perf: Perf, ranks: Ranks, record_property: Record) -> None:
    """Every host of the cluster: wrong results and slow parts fail the test by name; the matrix of hosts is shown."""
    load = SMALL if perf.smoke else FULL
    nodes = ranks.run(num_nodes)[0]
    if nodes == 1:
        pytest.skip(ONE_NODE)
    seen = surveyed(ranks, nodes, load)
    wrong = list(reference.differing(seen))
    assert not wrong, "\n".join(wrong)
    matrix = reference.matrix_of_hosts(load, seen)
    perf.show(hosts=matrix)
    slowest_gpu = min(reference.product_rate(load, one) for one in seen)
    slowest_memory = min(reference.copy_rate(load, one) for one in seen)
    together = statistics.median(max(taken) for taken in zip(*(one.together for one in seen), strict=True))
    busbw = 2 * (len(seen) - 1) / len(seen) * load.summed / together
    clock = "cuda_event" if ranks.backend == "nccl" else "host"

    def figure(value: float, unit: str) -> Metric:
        return Metric(value, unit, "higher", samples=load.samples, clock=clock)

    def plain(metric: Metric, limit: float | None, limit_name: str) -> Metric:
        return dataclasses.replace(metric, limit=limit, limit_name=limit_name, plain=True)

    perf.check(
        slowest_gpu=plain(figure(slowest_gpu, "FLOP/s"), perf.peak(load.dtype), "matrix units"),
        slowest_memory=plain(figure(slowest_memory, "B/s"), perf.memory.line_rate, perf.memory.name),
        slowest_pair=figure(min(matrix.values), "B/s"),
        all_hosts=figure(busbw, "B/s"),
    )
    found: Parts = () if perf.smoke else reference.found_slow(load, seen)
    slow = accepted(found, lambda: reference.found_slow(load, surveyed(ranks, nodes, load)), record_property)
    assert not slow, "\n".join(map(str, slow))


ALONE = {"matrix products", "copies in memory"}


def assert_named(ranks: Ranks, nodes: int, node: int, figures: set[str]) -> None:
    """In each of these figures the node that is held up is named, and nothing is slower."""
    seen = surveyed(ranks, nodes, SMALL, Drag(HELD_UP, node))
    name = next(one.host for one in seen if one.node == node)
    found = reference.found_slow(SMALL, seen)
    told = "\n".join(map(str, found)) or "no part was named"
    for figure in figures:
        of_figure = [slow for slow in found if slow.figure == figure]
        assert of_figure, f"nothing is slow in {figure}; {told}"
        assert (of_figure[0].part, of_figure[0].name) == ("host", name), told


@pytest.mark.ranks(nodes=2)
def test_of_two_nodes_the_slow_one_is_named(ranks: Ranks) -> None:
    """By what it does alone: their only pair says nothing of either."""
    for node in range(2):
        assert_named(ranks, 2, node, ALONE)


@pytest.mark.ranks(nodes=4)
def test_the_slow_node_is_named(ranks: Ranks) -> None:
    for node in (0, 2):
        assert_named(ranks, 4, node, {*ALONE, "pairs"})


def assert_slowest(ranks: Ranks, nodes: int, drag: Drag) -> None:
    """All that is held up takes more than twice as long as all that is not."""
    seen = surveyed(ranks, nodes, SMALL, drag)
    node_of = {one.host: one.node for one in seen}

    def is_held(gpu: tuple[str, int]) -> bool:
        return node_of[gpu[0]] == drag.node and drag.local_rank in (None, gpu[1])

    rates: dict[str, list[tuple[bool, float]]] = {"pairs": []}
    for (one, other), rate in reference.paired_rates(SMALL, seen).items():
        ends = {node_of[one[0]], node_of[other[0]]}
        held = is_held(one) or is_held(other) if drag.partner is None else ends == {drag.node, drag.partner}
        rates["pairs"].append((held, rate))
    for figure in reference.of_gpus(SMALL, seen) if drag.partner is None else ():
        if figure.name in ALONE:  # in sums inside the host all of its ranks wait
            rates[figure.name] = [(is_held(gpu), rate) for gpu, rate in figure.values.items()]
    for name, found in rates.items():
        fastest_held = max(rate for held, rate in found if held)
        assert 2 * fastest_held < min(rate for held, rate in found if not held), f"{name}: {found}"


def assert_named_first(ranks: Ranks, nodes: int, drag: Drag) -> None:
    """Nothing is named before the GPU or link that is held up, and not its host."""
    seen = surveyed(ranks, nodes, SMALL, drag)
    name_of = {one.node: one.host for one in seen}
    if drag.partner is None:
        expected = ("GPU", f"{name_of[drag.node]} GPU {drag.local_rank}")
    else:
        expected = ("link", f"{name_of[drag.node]} - {name_of[drag.partner]}")
    found = reference.found_slow(SMALL, seen)
    told = "\n".join(map(str, found)) or "no part was named"
    for figure in ALONE if drag.partner is None else {"pairs"}:
        of_figure = [(slow.part, slow.name) for slow in found if slow.figure == figure]
        assert of_figure[:1] == [expected], f"{figure}: {told}"


@pytest.mark.ranks(nodes=4)
def test_a_slow_link_between_nodes_is_named(ranks: Ranks) -> None:
    assert_named_first(ranks, 4, Drag(2.5 * USUAL, 1, partner=3, others=USUAL))


@pytest.mark.ranks(4, nodes=2)
def test_a_slow_gpu_of_a_node_is_named(ranks: Ranks) -> None:
    assert_named_first(ranks, 2, Drag(2.5 * USUAL, 1, local_rank=0, others=USUAL))


@pytest.mark.ranks(4)
@pytest.mark.parametrize(
    ("nodes", "drag"),
    [
        (4, Drag(HELD_UP, 3)),
        (4, Drag(HELD_UP, 0, partner=2)),
        (2, Drag(HELD_UP, 1, local_rank=0)),
    ],
    ids=["node", "link", "GPU"],
)
def test_what_is_slow_is_seen_as_if_on_nodes(ranks: Ranks, nodes: int, drag: Drag) -> None:
    assert_slowest(ranks, nodes, drag)


@pytest.mark.ranks(2, device="cpu")  # a GPU has a clock of its own
def test_seconds_are_those_of_a_step(ranks: Ranks) -> None:
    """However many steps a sample has: twenty steps of 20 ms have 20 ms each, in every figure."""
    delay, repeats = 0.02, 20
    load = dataclasses.replace(SMALL, samples=1, repeats=repeats)
    seen = surveyed(ranks, ranks.world_size, load, Drag(delay, 0))
    for one in seen:
        figures = {f"a pair with node {partner}": taken for partner, taken in one.paired.items()} | {
            "products": one.product,
            "copies": one.copy,
            "the sum of all": one.together,
        }
        for name, taken in figures.items():
            expected = delay if one.node == 0 else USUAL
            assert taken == pytest.approx((expected,) * load.samples), f"{one.host}, {name}"


class Done(TorchDispatchMode):
    """Within its block the bytes of each copy of bytes and each product are noted."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.products: list[int] = []
        self.copies: list[int] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.ops.aten.mm.out:
            self.products.append(args[0].shape[0])
        elif func is torch.ops.aten.copy_.default and args[1].dtype == torch.uint8:
            self.copies.append(args[1].nbytes)
        return func(*args, **(kwargs or {}))


def done(ctx: Context, *, nodes: int, rounds: Rounds, load: Load) -> dict[str, Counter[int]]:
    """How often a survey does what, by its size."""
    with Done() as here, Traffic() as traffic:
        hosts.survey(ctx, nodes=nodes, rounds=rounds, load=load)
    counts = {"products": Counter(here.products), "copies": Counter(here.copies)}
    for call in traffic.calls:
        counts.setdefault(call.name, Counter())[call.given] += 1
    return counts


@pytest.mark.ranks(4)
def test_a_survey_does_what_its_load_says(ranks: Ranks) -> None:
    """Rates are made of the load's sizes, and would tell nothing of a step that does something else."""
    load = dataclasses.replace(SMALL, samples=3, repeats=2)
    steps = hosts.WARM_UP + load.samples * load.repeats
    expected = {
        "products": {load.width: steps},
        "copies": {load.copied: steps + 1, load.sent: 1},  # a copy fills each source
        "all_reduce": {load.linked: steps, load.summed: steps},
        "send": {load.sent: steps},
    }
    for rank, told in enumerate(ranks.run(done, nodes=2, rounds=[[(0, 1)]], load=load)):
        assert told == expected, f"rank {rank}"


def with_nothing_sent(ctx: Context, *, function: str) -> None:
    """A survey in which a function of torch.distributed does nothing."""
    with mock.patch.object(dist, function, return_value=[]):
        hosts.survey(ctx, nodes=2, rounds=[[(0, 1)]], load=SMALL)


@pytest.mark.ranks(2)
@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("all_reduce", "^GPU 0 of .*, the sum of all ranks"),
        ("batch_isend_irecv", r"^GPU 0 of .*bytes from rank \d of node"),
    ],
    ids=["sums", "messages"],
)
def test_what_did_not_arrive_is_reported(ranks: Ranks, function: str, message: str) -> None:
    """A link is not quick because nothing was sent over it."""
    with pytest.raises(AssertionError, match=message):
        ranks.run(with_nothing_sent, function=function)


@pytest.mark.ranks(3)
def test_each_two_of_an_odd_number_of_nodes_meet_once(ranks: Ranks) -> None:
    """In each round one node has no partner, and measures nothing."""
    for one in surveyed(ranks, 3, SMALL):
        assert sorted(one.paired) == [node for node in range(3) if node != one.node]
        assert {len(taken) for taken in one.paired.values()} == {SMALL.samples}


# What a rank of a healthy cluster sees: of four nodes, one rank each.
SEEN = [
    Seen(
        f"gpu-{node}",
        node,
        0,
        (0.5e-3, 1e-3, 9e-3),
        7,
        (9e-3, 1e-3, 0.5e-3),
        (),
        {other: (1e-3, 9e-3, 2e-3) for other in range(4) if other != node},
        (1e-3,),
    )
    for node in range(4)
]


def test_a_healthy_cluster_accuses_nobody() -> None:
    assert reference.found_slow(FULL, SEEN) == ()
    assert list(reference.differing(SEEN)) == []


def test_what_others_slow_down_now_and_then_is_not_accused() -> None:
    """Half of its samples are as good as the others': only the median is bad."""
    now_and_then = dataclasses.replace(
        SEEN[2], copy=(1e-3, 2e-3, 2e-3), paired=dict.fromkeys((0, 1, 3), (4e-4, 4e-3, 4e-3))
    )
    seen = [*SEEN[:2], now_and_then, SEEN[3]]
    assert {slow.name for slow in reference.found_slow(FULL, seen)} == {"gpu-2"}
    assert found_on_cpus(seen) == ()


def test_what_is_slow_in_each_sample_is_accused() -> None:
    slow = dataclasses.replace(SEEN[2], copy=(2e-3,) * 3, paired=dict.fromkeys((0, 1, 3), (9e-3,) * 3))
    others = [dataclasses.replace(one, paired={**one.paired, 2: (9e-3,) * 3}) for one in SEEN if one.node != 2]
    found = found_on_cpus([*others, slow])
    assert {(one.part, one.name, one.figure) for one in found} == {
        ("host", "gpu-2", "copies in memory"),
        ("host", "gpu-2", "pairs"),
    }
    link = [dataclasses.replace(one, paired={**one.paired, 3 - one.node: (9e-3,) * 3}) for one in SEEN[1:3]]
    assert [(one.part, one.name) for one in found_on_cpus([SEEN[0], *link, SEEN[3]])] == [("link", "gpu-1 - gpu-2")]


def resending(links: set[tuple[int, int]]) -> list[Seen]:
    """Seen on four hosts, of which these pairs send 2 % of their packets again, and the others 0.1 %."""
    return [
        dataclasses.replace(
            one,
            resent={other: 0.02 if {(one.node, other), (other, one.node)} & links else 0.001 for other in one.paired},
        )
        for one in SEEN
    ]


def test_a_link_that_loses_packets_is_named_and_a_host_in_place_of_all_its_links() -> None:
    assert reference.found_lossy(SEEN) == ()
    assert reference.found_lossy(resending(set())) == ()
    assert list(map(str, found_on_cpus(resending({(1, 3)})))) == [
        "link gpu-1 - gpu-3: 2.0 % of its packets are sent again (usually 0.1 %)"
    ]
    (host,) = reference.found_lossy(resending({(0, 2), (1, 2), (2, 3)}))
    assert (host.part, host.name) == ("host", "gpu-2")


@pytest.mark.parametrize(("named", "left"), [((True, True), 1), ((True, False), 0), ((False, True), 0)])
def test_a_part_is_slow_if_all_surveys_name_it(named: tuple[bool, bool], left: int) -> None:
    slow = Slow("host", "gpu-2", "pairs", 0.5, 9.0)
    surveys = iter([(slow,) if one else () for one in named])
    recorded: dict[str, object] = {}
    assert len(accepted((slow,), lambda: next(surveys), recorded.__setitem__)) == left
    assert recorded == {"slow": str(slow) if left else ""}


def test_a_gpu_that_computes_something_else_is_named() -> None:
    seen = [*SEEN[:2], dataclasses.replace(SEEN[2], digest=8), SEEN[3]]
    assert list(reference.differing(seen)) == ["gpu-2 GPU 0: its product of the same matrices differs from the others'"]


def test_figures_are_rates_of_what_was_done() -> None:
    """Each figure is of the usual sample: neither the best one nor one that was held up counts."""
    (products, copies) = reference.of_gpus(FULL, SEEN)
    assert products.values["gpu-0", 0] == 2 * FULL.width**3 / 1e-3
    assert copies.values["gpu-3", 0] == 2 * FULL.copied / 1e-3
    linked = [dataclasses.replace(one, linked=(1e-3, 4e-3, 9e-3)) for one in SEEN]
    assert reference.of_gpus(FULL, linked)[2].values["gpu-1", 0] == FULL.linked / 4e-3


def test_a_pair_is_as_fast_as_its_slower_end() -> None:
    slower = dataclasses.replace(SEEN[1], paired={0: (4e-3,) * 3, 2: (2e-3,) * 3, 3: (1e-3,) * 3})
    matrix = reference.matrix_of_hosts(FULL, [SEEN[0], slower, *SEEN[2:]])
    rate = FULL.sent / 2e-3
    assert matrix.names == ("gpu-0", "gpu-1", "gpu-2", "gpu-3")
    assert matrix.rows[0] == (None, rate / 2, rate, rate)
    assert matrix.rows[1] == (rate / 2, None, rate, rate)
    assert [(cell.row, cell.column) for cell in matrix.slow_pairs] == [(0, 1)]


@pytest.mark.parametrize("slow", [0, 1])
def test_a_pair_of_hosts_is_as_fast_as_its_slowest_gpus(slow: int) -> None:
    """Whichever of their GPUs that are."""
    seen = [
        dataclasses.replace(
            one,
            local_rank=place,
            paired=dict.fromkeys(one.paired, (4e-3 if place == slow and one.node == 0 else 2e-3,)),
        )
        for one in SEEN
        for place in range(2)
    ]
    matrix = reference.matrix_of_hosts(FULL, seen)
    rate = FULL.sent / 2e-3
    assert matrix.rows[0] == (None, rate / 2, rate / 2, rate / 2)
    assert matrix.rows[1] == (rate / 2, None, rate, rate)
