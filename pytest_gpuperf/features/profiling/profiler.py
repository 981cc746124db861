"""``--profile``: what a perf test has measured is profiled, once all its metrics have been measured.

The profiler slows what it watches, and CUPTI stays in a process once it was used. So the programs of a test are
profiled after the last of its measurements, and the ranks are replaced before the next test.
"""

from __future__ import annotations

import dataclasses
import re
import warnings
import zlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from pytest_gpuperf.api.checks import Checks, Measured
from pytest_gpuperf.baselines.plain import make_plain
from pytest_gpuperf.features.profiling.lines import PROFILES
from pytest_gpuperf.report.one_line import make_one_line
from pytest_gpuperf.report.units import format_bytes
from pytest_gpuperf.run.current_ranks import CurrentRanks
from pytest_gpuperf.run.launches import find_launch
from pytest_gpuperf.run.selection import world_size
from pytest_gpuperf.traces.lanes import MOST, merge_lanes
from pytest_gpuperf.traces.merging import write
from pytest_gpuperf.traces.profile import Profile
from pytest_gpuperf.traces.rank_trace import RankTrace

_NAME_CHARACTERS = 150  # of a file; most file systems take 255 bytes


class ProfileWarning(UserWarning):
    """A perf test could not be profiled; its metrics and its outcome are what they are without ``--profile``."""

    __module__ = "pytest_gpuperf"  # where users import it from, and filter it by


class Profiling:
    """Profiles the perf tests of one run."""

    def __init__(self, folder: Path, directory: Path, ranks: CurrentRanks) -> None:
        """Keep what it needs.

        Args:
            folder: for the traces.
            directory: where pytest was invoked; files in it are named relative to it.
            ranks: of the test that runs.
        """
        self._folder = folder
        self._directory = directory
        self._ranks = ranks

    def require(self) -> None:
        """Make the folder, before anything is measured.

        Raises:
            pytest.UsageError: no file can be written there.
        """
        probe = self._folder / ".gpuperf-writable"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            probe.touch()
            probe.unlink(missing_ok=True)  # a worker beside this one may have removed it
        except OSError as error:
            raise pytest.UsageError(
                f"--profile cannot write traces to {str(self._folder)!r}: {error.strerror or error}: name a folder "
                "that can be written, with --profile=DIR"
            ) from error

    def profile(self, item: pytest.Item, test: str, world_size: int, measured: Sequence[Measured]) -> None:
        """Profile what a test has measured, and put it among the properties of its report.

        Args:
            item: the test; it gets a ``ProfileWarning`` for each program that cannot be profiled.
            test: its node id, the same in each launch.
            world_size: number of ranks.
            measured: its programs.
        """
        try:
            found = [
                self._profile(test, arm, world_size, one)
                for arm, one in zip(_name_arms(measured), measured, strict=True)
            ]
        finally:
            self._ranks.replace_ranks()
        for profile in found:
            if profile.problem:
                _warn(item, f"{test}: {profile.arm} could not be profiled: {profile.problem}")
        item.user_properties += PROFILES.carry(make_plain(_limit_intervals(found)))

    def _profile(self, test: str, arm: str, world_size: int, one: Measured) -> Profile:
        from pytest_gpuperf.features.profiling.on_rank import STEPS, profile_steps  # loads torch, as the test has

        args = (one.program, one.kwargs, one.sampling, f"{test} {arm}", one.sizes, one.nbytes)
        path = self._folder / make_file_name(test, arm)
        try:
            traces: list[RankTrace] = self._ranks.run(world_size, profile_steps, args, {}, one.program)
            if not all(trace.chrome for trace in traces):
                problem = "Nsight Systems profiles the ranks, and a GPU serves one profiler: its report has NVTX ranges"
                return Profile(test, arm, "", problem)
            about = {"test": test, "arm": arm, "steps": STEPS, "world_size": world_size}
            joined = write(path, traces, about)
        # A program may skip or fail by pytest's own exceptions, and its metrics have been measured.
        except (Exception, pytest.skip.Exception, pytest.fail.Exception) as error:
            return Profile(test, arm, "", make_one_line(f"{type(error).__name__}: {error}"))
        return Profile(
            test,
            arm,
            str(path.relative_to(self._directory) if path.is_relative_to(self._directory) else path),
            steps=STEPS,
            overlap_exposed=one.overlap_exposed,
            ranks=joined.ranks,
            lanes=joined.lanes,
        )


class TestProfiler:
    """Profiles each test in its first launch."""

    def __init__(self, profiling: Profiling) -> None:
        """Profiles no test yet."""
        self._profiling = profiling

    def pytest_gpuperf_measures(self, item: pytest.Item, checks: Checks) -> None:
        """Has what the test measures kept, in its first launch."""
        if find_launch(item).number == 1:
            checks.measured = []

    def pytest_gpuperf_checked(self, item: pytest.Item, checks: Checks) -> None:
        """Profiles what the test has measured."""
        measured, checks.measured = checks.measured, None  # which holds the programs' arguments
        if measured:
            self._profiling.profile(item, find_launch(item).identity, world_size(item) or 0, measured)


def make_file_name(test: str, arm: str) -> str:
    """Return the name of a trace: what a file name can hold of the test's id, and a sum of the whole."""
    whole = f"{test} {arm}"
    readable = re.sub(r"[^A-Za-z0-9_.]+", "-", whole).strip("-.")[-_NAME_CHARACTERS:]
    return f"{readable}-{zlib.crc32(whole.encode(errors='surrogatepass')):08x}.json.gz"


def _name_arms(measured: Sequence[Measured]) -> list[str]:
    names = [
        one.arm if one.nbytes is None else f"{one.arm}-{format_bytes(one.nbytes).replace(' ', '')}" for one in measured
    ]
    seen: Counter[str] = Counter()
    found = []
    for name in names:
        seen[name] += 1
        found.append(name if seen[name] == 1 else f"{name}-{seen[name]}")
    return found


def _limit_intervals(profiles: Sequence[Profile]) -> list[Profile]:
    """Return the profiles of one test with as many intervals as a page draws."""
    few = iter(merge_lanes([lane for profile in profiles for lane in profile.lanes], MOST))
    return [dataclasses.replace(profile, lanes=tuple(next(few) for _ in profile.lanes)) for profile in profiles]


def _warn(item: pytest.Item, text: str) -> None:
    with warnings.catch_warnings():
        # An error of it, as with -W error, would change the test's outcome.
        warnings.simplefilter("always", ProfileWarning)
        item.warn(ProfileWarning(make_one_line(text)))
