"""``accept --cluster``: the hosts of a Ray cluster, each alone, in pairs and all together; the slow ones by name."""

from __future__ import annotations

import shlex
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from pytest_gpuperf.features.acceptance.command import Wanted
from pytest_gpuperf.features.acceptance.phases import run
from pytest_gpuperf.hardware.hostlist import parse_slurm_names
from pytest_gpuperf.report.ran import Ran
from pytest_gpuperf.report.results_file import write
from pytest_gpuperf.suites_command import make_suites_command

UNAVAILABLE = 69
"""Exit status if the hosts could not be measured: sysexits.h's EX_UNAVAILABLE, as ``everywhere`` has it."""
SLOW = "slow"
"""The property in which the test records the slow parts, one a line, as ``Slow`` prints them."""
_TESTS = "test_acceptance"  # with GPUs, and on CPUs


@dataclass(frozen=True, slots=True)
class SlowPart:
    """A slow part of a cluster."""

    line: str
    """In words: host h3: 89.8 % slower than the other hosts in pairs."""
    host: str
    """The host that has it; empty for a link between two."""

    @classmethod
    def parse(cls, line: str) -> Self:
        """Return the part that a line of the test's record is about."""
        part, _, rest = line.partition(" ")
        name = rest.partition(": ")[0]
        return cls(line, {"host": name, "GPU": name.partition(" GPU ")[0]}.get(part, ""))


def accept_hosts(wanted: Wanted, root: Path, environ: Mapping[str, str]) -> int:
    """Accept the hosts of a cluster; return 0 if they are fit, 1 if one is slow or wrong, 69 if they were not measured.

    Args:
        wanted: what the user asked for.
        root: the folder that holds ``suites``.
        environ: the environment, which names Slurm's nodes.
    """
    with tempfile.TemporaryDirectory(prefix="gpuperf-accept-") as folder:
        file, log = Path(folder) / "hosts.json", Path(folder) / "hosts.log"
        _say("hosts: each alone, in pairs, all together ...")
        began = time.monotonic()
        ended = run(_make_command(wanted, root, file), file, log)
    ran = [] if ended.results is None else [one for one in ended.results.ran if one.outcome != "skipped"]
    if not ran or ended.results is None:
        skipped = [] if ended.results is None else [one.reason for one in ended.results.ran]
        _say(f"error: the hosts were not measured: {next(iter(skipped), ended.output)}")
        return UNAVAILABLE
    _say(f"hosts: measured in {time.monotonic() - began:.0f} s")
    slow = [SlowPart.parse(line) for line in _list_slow_lines(ran)]
    failed = [one.reason for one in ran if one.outcome == "failed"] if not slow else []
    print("", *format_verdict(slow, failed), *drain_lines(slow, environ), sep="\n", flush=True)
    if wanted.json is not None:
        write(wanted.json, ended.results)
        _say(f"results written to {wanted.json}")
    return 1 if slow or failed else 0


def format_verdict(slow: Sequence[SlowPart], failed: Sequence[str]) -> list[str]:
    """Return the verdict: the hosts that are unfit, and why.

    Args:
        slow: the slow parts.
        failed: why tests failed that named no slow part: wrong bytes, a node that was lost.
    """
    if not slow and not failed:
        return ["fit: no host, GPU or link is slow"]
    hosts = ", ".join(dict.fromkeys(part.host for part in slow if part.host))
    return [f"unfit{f': {hosts}' if hosts else ''}", *(part.line for part in slow), *failed]


def drain_lines(slow: Sequence[SlowPart], environ: Mapping[str, str]) -> list[str]:
    """Return for each slow host the command that drains it in Slurm; none outside of a Slurm job.

    Args:
        slow: the slow parts, the slowest first.
        environ: the environment, which has the job's nodes in ``SLURM_JOB_NODELIST``.
    """
    nodes = parse_slurm_names(environ.get("SLURM_JOB_NODELIST", ""))
    reasons: dict[str, str] = {}
    for part in slow:
        node = next((one for one in nodes if one in (part.host, part.host.partition(".")[0])), None)
        if node is not None:
            reasons.setdefault(node, f"gpuperf: {part.line}")
    return [
        shlex.join(["scontrol", "update", f"nodename={node}", "state=drain", f"reason={reason}"])
        for node, reason in reasons.items()
    ]


def _make_command(wanted: Wanted, root: Path, results: Path) -> list[str]:
    gpus = "auto" if wanted.gpus is None else str(wanted.gpus)
    arguments = [f"--cluster={wanted.cluster}", f"--gpus={gpus}", "--no-strict-baselines", "--environment=warn", "-k"]
    arguments += [_TESTS, *(["--accept-cpus"] if wanted.gpus == 0 else []), f"--gpuperf-json={results}"]
    arguments += ["-q", "--no-header", "--no-summary", "--tb=short", "-p", "no:cacheprovider", "-p", "no:benchmark"]
    command = make_suites_command(arguments, root, Path.cwd())
    file = str(root / "suites" / "multi_node" / "test_hosts.py")
    return [file if one == str(root / "suites") else one for one in command]


def _list_slow_lines(ran: Sequence[Ran]) -> list[str]:
    return [line for one in ran for line in str(one.properties.get(SLOW, "")).splitlines()]


def _say(line: str) -> None:
    print(f"gpuperf: {line}", flush=True)
