"""Makes references of baselines: ``make references``."""

from __future__ import annotations

import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

from pytest_gpuperf.baselines.schema import Baselines, LaunchInfo, MetricBaseline
from pytest_gpuperf.baselines.storage import make_storage
from pytest_gpuperf.features.day_zero.references.schema import KIND, Recorded, References, Source

SOFTWARE = ("driver", "cuda", "nccl", "torch", "python")
UNKNOWN = "unknown"
"""The machine of launches whose GPUs are not known."""


def make_references(stored: Iterable[Baselines]) -> dict[str, References]:
    """Return the references of each kind of GPU, by the file's name.

    Clusters, and GPUs of several kinds in one machine, make none.
    """
    by_kind: dict[str, list[Baselines]] = defaultdict(list)
    for baselines in stored:
        name = baselines.match.get("gpu_name")
        if isinstance(name, str) and "+" not in name and set(KIND) <= set(baselines.match):
            by_kind[make_file_name(baselines.match)].append(baselines)
    return {name: _merge_baselines(several) for name, several in sorted(by_kind.items())}


def make_file_name(match: Mapping[str, object]) -> str:
    """Return the name of the file for GPUs with these facts: their name and the facts that tell kinds apart."""
    words = "-".join(str(match[fact]) for fact in KIND)
    return re.sub(r"[^a-z0-9.]+", "-", words.lower()).strip("-") + ".json"


def _merge_baselines(several: list[Baselines]) -> References:
    return References(
        kind={fact: several[0].match[fact] for fact in KIND},
        sources={baselines.hardware_key: _make_source(baselines) for baselines in several},
        figures={
            baselines.hardware_key: {
                test: {
                    name: _make_record(entry.body_hash, metric, baselines.launches)
                    for name, metric in entry.metrics.items()
                    if name not in entry.expected  # a known regression is nothing that healthy machines show
                }
                for test, entry in baselines.tests.items()
            }
            for baselines in several
        },
    )


def _make_source(baselines: Baselines) -> Source:
    infos = list(baselines.launches.values())
    versions = {name: {info.environment.get(name) for info in infos} for name in SOFTWARE}
    count = baselines.match.get("gpu_count")
    return Source(
        gpu_count=count if isinstance(count, int) else 1,
        topology=str(baselines.match.get("topology") or ""),
        machines=len({info.gpus for info in infos}),
        launches=len(infos),
        first=min(info.at for info in infos)[:10],
        last=max(info.at for info in infos)[:10],
        software={name: str(*found) for name, found in versions.items() if len(found) == 1 and None not in found},
    )


def _make_record(body_hash: str, metric: MetricBaseline, launches: Mapping[str, LaunchInfo]) -> Recorded:
    machines: dict[str, list[float]] = defaultdict(list)
    for figure in metric.launches:
        machines[launches[figure.launch].gpus or UNKNOWN].append(figure.median)
    return Recorded(
        body_hash, metric.unit, metric.better, metric.clock, {gpus: tuple(of) for gpus, of in sorted(machines.items())}
    )


def main(baselines: Path, folder: Path) -> None:
    """Replace the files of the folder by those that the baselines make."""
    storage = make_storage(baselines)
    stored = [found for key in storage.hardware_keys() if (found := storage.load(key)) is not None]
    for old in folder.glob("*.json"):
        old.unlink()
    for name, references in make_references(stored).items():
        text = json.dumps(references.to_json(), sort_keys=True, separators=(",", ":"), allow_nan=False)
        (folder / name).write_text(text.replace('},"', '},\n"') + "\n")  # some metric a line: a change of one is seen
        print(f"{folder / name}: {len(text) / 1e3:.0f} kB")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:3]))
