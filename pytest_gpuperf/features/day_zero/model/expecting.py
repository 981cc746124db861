"""Expected ranges of metrics: alpha-beta for collectives, rooflines for products and memory, shares of known limits."""

from __future__ import annotations

import re

from pytest_gpuperf.features.day_zero.model import table
from pytest_gpuperf.features.day_zero.model.parts import Part, Unknown
from pytest_gpuperf.features.day_zero.model.rates import Rates
from pytest_gpuperf.figures.bandwidth import BUS_FACTORS, compute_busbw_limit
from pytest_gpuperf.figures.metric import LIMIT_TOLERANCE, Metric
from pytest_gpuperf.figures.readings import CLOCK as COUNTER
from pytest_gpuperf.figures.sweep import NEIGHBOURS
from pytest_gpuperf.figures.work import Exchange, Work
from pytest_gpuperf.verdicts.opinion import Opinion, Saying

_LINKS = re.compile(r"nv\d+|pix|pxb|phb|node|sys")


def form_opinion(metric: Metric, rates: Rates) -> Opinion:
    """What the model says of a metric that has no record.

    Args:
        metric: The metric; its work, its limit, or its unit says what it depends on.
        rates: Of the machine.
    """
    try:
        low, high, component = _predict_range(metric, rates)
    except Unknown as unknown:
        return Opinion(Saying.NONE, why=str(unknown))
    saying = Saying.PLAUSIBLE
    if low is not None and metric.value < low:
        saying = Saying.BELOW if metric.better == "higher" else Saying.ABOVE
    elif high is not None and metric.value > high:
        saying = Saying.ABOVE if metric.better == "higher" else Saying.BELOW
    return Opinion(saying, low, high, component)


def predict_scaled(metric: Metric, ranks: int, rates: Rates) -> float | None:
    """Return what the model makes of a metric of one collective on so many ranks, up to a factor; None without a model.

    The ratio of two of these carries a metric from one number of ranks to another. A rate is taken for a bus bandwidth.

    Args:
        metric: the metric; its work is one collective.
        ranks: how many.
        rates: of the machine.
    """
    work = metric.work
    if work is None or len(work.exchanges) != 1 or work.flop or work.memory_bytes or rates.between is not None:
        return None
    (exchange,) = work.exchanges
    try:
        seconds = _predict_exchange(exchange, ranks, rates).slowest
    except Unknown:
        return None
    return BUS_FACTORS[exchange.op](ranks) / seconds if metric.better == "higher" else seconds


def _predict_range(metric: Metric, rates: Rates) -> tuple[float | None, float | None, str]:
    if metric.scope == "host":
        raise Unknown("it depends on the host, its sockets and disks")
    if metric.work is not None:
        return _predict_work(metric, metric.work, rates)
    if metric.limit is not None and metric.better == "higher":
        kind = "links" if _LINKS.fullmatch(metric.limit_name) else metric.limit_name
        if kind not in table.OF_LIMIT:
            raise Unknown(f"no share of {metric.limit_name or 'its limit'} is known that healthy hardware reaches")
        if not metric.plain:
            raise Unknown(f"the test does not say that its step does nothing but use the {kind}: plain=True")
        power = rates.power if kind == "matrix units" else 1.0
        component = rates.links if kind == "links" and rates.links else kind
        return table.MARGIN * table.OF_LIMIT[kind] * power * metric.limit, _add_tolerance(metric.limit), component
    if metric.unit == "x" and metric.clock == COUNTER:
        return None, table.TRAFFIC_AT_MOST, rates.links or "links between GPUs"
    if metric.limit_name == NEIGHBOURS:
        return table.MARGIN * table.EVENNESS_AT_LEAST, None, "one size among its neighbours"
    if metric.unit == "x" and metric.better == "higher" and metric.interval is not None:  # of two arms that raced
        return table.SPEEDUP_AT_LEAST, None if metric.limit is None else _add_tolerance(metric.limit), "the technique"
    raise Unknown("the test does not say what work it is")


def _predict_work(metric: Metric, work: Work, rates: Rates) -> tuple[float, float, str]:
    parts = [_predict_exchange(exchange, work.ranks, rates) for exchange in work.exchanges]
    if work.flop:
        parts.append(_predict_computation(work, rates))
    if work.memory_bytes:
        parts.append(_predict_movement(work.memory_bytes, rates))
    if not parts:
        raise Unknown("the test's work is empty")
    fastest, slowest = max(part.fastest for part in parts), sum(part.slowest for part in parts)
    component = max(parts, key=lambda part: part.slowest).component
    if metric.better == "higher":
        return work.amount / slowest, _add_tolerance(work.amount / fastest), component
    return fastest / (1 + LIMIT_TOLERANCE), slowest, component


def _predict_exchange(exchange: Exchange, ranks: int, rates: Rates) -> Part:
    """A ring's alpha-beta: a start, a latency for each of its steps, and the bytes over the links."""
    if rates.between is not None:
        return rates.between.predict_exchange(exchange, ranks)
    if rates.nccl is None or rates.line is None:
        raise Unknown("no line rate of the links between these GPUs is known")
    if exchange.op not in BUS_FACTORS or ranks < 2:
        raise Unknown(f"nothing is known of {exchange.op!r} on {ranks} ranks")
    wire = exchange.nbytes * BUS_FACTORS[exchange.op](ranks)
    shares = table.LARGE if exchange.nbytes >= table.LARGE_BYTES else table.MEDIUM
    rate = table.MARGIN * shares.get(exchange.op, table.OTHER_OP) * rates.nccl
    steps = 2 * (ranks - 1) if exchange.op == "all_reduce" else ranks - 1
    latency = (table.RING_BASE + steps * table.RING_STEP[rates.wire]) / table.MARGIN
    limit = compute_busbw_limit(exchange.op, ranks, rates.line, rates.multicast)
    return Part(exchange.times * wire / limit, exchange.times * (latency + wire / rate), rates.links)


def _predict_computation(work: Work, rates: Rates) -> Part:
    peak = rates.peak(work.dtype)
    if peak is None:
        raise Unknown(f"no peak of {rates.name or 'these GPUs'} for {work.dtype} is known")
    rate = table.MARGIN * table.OF_LIMIT["matrix units"] * rates.power * peak
    return Part(work.flop / peak, work.flop / rate, "matrix units")


def _predict_movement(memory_bytes: float, rates: Rates) -> Part:
    if rates.memory is None:
        raise Unknown("the rate of the GPUs' memory is unknown")
    rate = table.MARGIN * table.OF_LIMIT["memory"] * rates.memory
    return Part(memory_bytes / rates.memory, memory_bytes / rate, "GPU memory")


def _add_tolerance(limit: float) -> float:
    return limit * (1 + LIMIT_TOLERANCE)
