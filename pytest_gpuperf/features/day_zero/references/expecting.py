"""References judge a metric without a record: it may lose what healthy machines of its kind show, and no more."""

from __future__ import annotations

import math
from functools import cached_property

from pytest_gpuperf.features.day_zero.model.expecting import predict_scaled
from pytest_gpuperf.features.day_zero.model.rates import Rates
from pytest_gpuperf.features.day_zero.references.shelf import Known, Shelf, parse_rank_count
from pytest_gpuperf.figures.metric import Metric
from pytest_gpuperf.figures.student import upper_quantile
from pytest_gpuperf.verdicts.opinion import Opinion, Saying
from pytest_gpuperf.verdicts.rule import SEEN, Policy, Rule
from pytest_gpuperf.verdicts.shares import compute_loss_log


class Expecting:
    """Judges metrics of one machine by references of its kind."""

    def __init__(self, shelf: Shelf, rates: Rates, policy: Policy) -> None:
        """Keep what it needs.

        Args:
            shelf: has the references.
            rates: of the machine; the model carries metrics from another number of GPUs with them.
            policy: the smallest loss that counts.
        """
        self._shelf = shelf
        self._rates = rates
        self._policy = policy

    def opinion(self, test: str, name: str, metric: Metric, body_hash: str) -> Opinion | None:
        """Return what references expect of a metric; None if they say nothing of it.

        A metric is below if it lost more than 999 of 1000 healthy machines do, and more than the policy's
        minimum slowdown.

        Args:
            test: node id.
            name: of the metric.
            metric: what was measured.
            body_hash: names the test's source.
        """
        known = self._shelf.find_known(test, name, metric, body_hash)
        if known is not None:
            return self._hold_against_records(metric, known, known.history.center, 0.0, _describe_source(known))
        carried = self._carry_over(test, name, metric, body_hash)
        if carried is None:
            return None
        known, center, off = carried
        source = f"{_describe_source(known)}, carried from {known.ranks} ranks to {parse_rank_count(test)} by the model"
        return self._hold_against_records(
            metric, known, center, off, f"{source} ({math.expm1(off):.0%} off between recorded ones)"
        )

    @cached_property
    def _rule(self) -> Rule:
        return Rule.of(self._policy, self._shelf.histories, checks=1)

    def _hold_against_records(self, metric: Metric, known: Known, center: float, off: float, source: str) -> Opinion:
        least = off + self._rule.find_largest_healthy(known.history)
        loss = compute_loss_log(metric.value, metric.better) - center
        ends = [math.exp(-(center + least)) if metric.better == "higher" else math.exp(center + least)]
        low, high = (ends[0], None) if metric.better == "higher" else (None, ends[0])
        seen = math.expm1(least + upper_quantile(SEEN, math.inf) * self._rule.error(known.history))
        saying = Saying.BELOW if loss > least else Saying.PLAUSIBLE
        usual = math.exp(-center if metric.better == "higher" else center)
        return Opinion(saying, low, high, source=source, usual=usual, seen=seen)

    def _carry_over(self, test: str, name: str, metric: Metric, body_hash: str) -> tuple[Known, float, float] | None:
        """Return the record of the nearest number of ranks, the centre that it gives here, and the model's error.

        Only a collective is carried, and only if two sizes are recorded: the model's error is the one between these.
        """
        if metric.scope != "gpus" or metric.work is None:
            return None
        others = self._shelf.others(test, name, metric, body_hash)
        if len(others) < 2:
            return None
        near, far = others[:2]
        here, there, elsewhere = (
            predict_scaled(metric, ranks, self._rates) for ranks in (parse_rank_count(test), near.ranks, far.ranks)
        )
        if here is None or there is None or elsewhere is None:
            return None
        sign = 1.0 if metric.better == "lower" else -1.0
        off = abs(near.history.center - far.history.center - sign * math.log(there / elsewhere))
        return near, near.history.center + sign * math.log(here / there), off


def _describe_source(known: Known) -> str:
    launches = f"{known.launches} launch{'' if known.launches == 1 else 'es'}"
    return f"{launches} on {known.machines} machine{'' if known.machines == 1 else 's'} of this kind"
