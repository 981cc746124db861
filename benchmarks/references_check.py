"""How references fare on machines that they were not made of: which figures of recorded launches would be red.

    python benchmarks/references_check.py [--json FILE]

Three trials: each machine is judged by all others of as many GPUs; machines of 4 GPUs by those of 2, and back, for
figures of one GPU and of a pair; and collectives that the model carries from one number of GPUs to another. Last, how
large a loss the references would have seen.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

# Run as a script, the folder of the script is on the path and not the repository's root.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.collected import collected
from pytest_gpuperf.baselines.schema import Baselines
from pytest_gpuperf.baselines.storage import make_storage
from pytest_gpuperf.features.day_zero.model import table
from pytest_gpuperf.features.day_zero.model.expecting import predict_scaled
from pytest_gpuperf.features.day_zero.model.rates import Rates
from pytest_gpuperf.features.day_zero.references.expecting import Expecting
from pytest_gpuperf.features.day_zero.references.making import make_references
from pytest_gpuperf.features.day_zero.references.shelf import Shelf
from pytest_gpuperf.figures.metric import Metric, Scope
from pytest_gpuperf.figures.work import Exchange, Work
from pytest_gpuperf.markers import find_scope
from pytest_gpuperf.run.body_hash import hash_body
from pytest_gpuperf.verdicts.opinion import Opinion, Saying
from pytest_gpuperf.verdicts.rule import Policy

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, slots=True)
class Judged:
    """A launch's figure and what references say of it."""

    key: str
    machine: str
    test: str
    metric: str
    scope: Scope
    opinion: Opinion
    value: float


def figures(stored: Baselines, items: Mapping[str, pytest.Function]) -> Iterator[tuple[str, str, str, Metric, str]]:
    """Yield machine, test, name and metric of each launch, and the hash of the test's body."""
    for test, entry in stored.tests.items():
        if test not in items:
            print(f"not collected any more: {test}")
            continue
        if hash_body(items[test]) != entry.body_hash:
            print(f"its body is another one: {test}")
        for name, metric in entry.metrics.items():
            scope = find_scope(items[test], name)
            for launch in metric.launches:
                told = Metric(launch.median, metric.unit, metric.better, clock=metric.clock, scope=scope)
                yield stored.launches[launch.launch].gpus, test, name, told, entry.body_hash


def without(stored: Baselines, machine: str) -> Baselines:
    """Return the baselines without the launches of one machine, and without figures that only it has."""
    tests = {}
    for test, entry in stored.tests.items():
        metrics = {}
        for name, metric in entry.metrics.items():
            left = tuple(one for one in metric.launches if stored.launches[one.launch].gpus != machine)
            if left:
                metrics[name] = replace(metric, launches=left)
        if metrics:
            tests[test] = replace(entry, metrics=metrics)
    launches = {id_: info for id_, info in stored.launches.items() if info.gpus != machine}
    return Baselines(stored.hardware_key, stored.match, launches, tests)


def expecting(stored: list[Baselines], match: Mapping[str, object]) -> Expecting:
    """Return what references that are made of these baselines expect."""
    (references,) = make_references(stored).values()
    return Expecting(Shelf(references, str(match["topology"])), Rates(), Policy())


def judged(expects: Expecting, stored: Baselines, items: Mapping[str, pytest.Function], only: str = "") -> list[Judged]:
    """Judge all launches of baselines, or those of one machine."""
    found = []
    for machine, test, name, metric, body in figures(stored, items):
        if only in ("", machine) and (said := expects.opinion(test, name, metric, body)) is not None:
            found.append(Judged(stored.hardware_key, machine, test, name, metric.scope, said, metric.value))
    return found


_BANDWIDTH = re.compile(r"test_bus_bandwidth\[(\d)ranks-(\w+)-(\w+)\]")
SIZES = {"1KiB": 2**10, "64MiB": 2**26, "1GiB": 2**30}


def carried(stored: Mapping[str, Baselines]) -> None:
    """Print how far the model is off that carries bus bandwidths from 2 ranks to 4, by collective and size."""
    for gpu in sorted({str(baselines.match["gpu_name"]) for baselines in stored.values()}):
        centers: dict[tuple[str, str], dict[int, float]] = defaultdict(dict)
        for baselines in stored.values():
            for test, entry in baselines.tests.items() if baselines.match["gpu_name"] == gpu else ():
                if found := _BANDWIDTH.search(test):
                    ranks, op, size = found.groups()
                    centers[op, size][int(ranks)] = entry.metrics["busbw"].center
        print(f"{gpu}: bus bandwidth of 4 ranks against what the model carries there from 2")
        rates = Rates(gpu, line=450e9, nccl=18 * table.NCCL_LINK[9, 0], links="NV18")
        for (op, size), center in centers.items():
            metric = Metric(1.0, "B/s", "higher").for_work(Work(2, (Exchange(op, SIZES[size]),)))
            two, four = (predict_scaled(metric, ranks, rates) for ranks in (2, 4))
            if len(center) == 2 and two and four:
                print(f"  {op:16} {size:6} {center[4] / (center[2] * four / two) - 1:+.1%}")


def report(title: str, found: list[Judged]) -> Mapping[str, object]:
    """Print how many figures are red, and which; return the same."""
    red = [one for one in found if one.opinion.saying is Saying.BELOW]
    launches = len({(one.test, one.metric) for one in red})
    print(f"{title}: {len(red)} of {len(found)} launches of metrics red ({launches} metrics)")
    by_figure: dict[tuple[str, str], list[Judged]] = defaultdict(list)
    for one in red:
        by_figure[one.test, one.metric].append(one)
    for (test, name), several in by_figure.items():
        worst = max(abs(math.log(one.value / (one.opinion.usual or one.value))) for one in several)
        machines = sorted({one.machine for one in several})
        print(f"  {test} {name}: {len(several)} launches on {len(machines)} machines, {math.expm1(worst):.1%} off")
    seen = [one.opinion.seen for one in found if one.opinion.seen is not None]
    quantiles = statistics.quantiles(seen, n=10) if len(seen) > 1 else []
    if quantiles:
        print(f"  a loss is seen from (deciles): {', '.join(f'{one:.1%}' for one in quantiles)}")
    return {"title": title, "judged": len(found), "red": len(red), "figures": launches}


def main() -> None:
    """Run all trials."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    items = collected(ROOT)
    storage = make_storage(ROOT / "baselines")
    stored = {key: one for key in storage.hardware_keys() if (one := storage.load(key)) is not None}
    told = []
    for key, baselines in stored.items():
        machines = Counter(info.gpus for info in baselines.launches.values())
        if len(machines) > 1:
            found = [
                one
                for machine in machines
                for one in judged(expecting([without(baselines, machine)], baselines.match), baselines, items, machine)
            ]
            told.append(report(f"{key}, each machine by the {len(machines) - 1} others", found))
    for of, by in (("4x", "2x"), ("2x", "4x"), ("1x", "2x"), ("2x", "1x")):
        for key, baselines in stored.items():
            others = [
                other
                for name, other in stored.items()
                if name.startswith(by) and other.match["gpu_name"] == baselines.match["gpu_name"]
            ]
            if key.startswith(of) and others:
                found = judged(expecting(others, baselines.match), baselines, items)
                told.append(report(f"{key} by {by}, one GPU or a pair", [one for one in found if one.scope != "gpus"]))
    carried(stored)
    if options.json is not None:
        options.json.write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
