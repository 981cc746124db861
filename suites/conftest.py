"""hypothesis profiles of the suites: ``--hypothesis-profile=thorough`` draws more, ``ci`` and ``quick`` less on ranks.

The examples of a profile are for a drawn test as a whole: its world sizes and other parameters share them.
"""

import argparse
import math
import os
from collections import Counter
from collections.abc import Generator

import pytest
from hypothesis import Phase, settings

from suites.shared.dealing import DEALT, early_first
from suites.shared.differences import differences, in_words

EXAMPLES = {"suites": 100, "thorough": 2000, "ci": 25, "quick": 5}
WORLD_SIZE = pytest.StashKey[int | None]()
"""The number of ranks of the test that runs; None if it has no ranks."""
SHARE = "examples(share): of the profile's examples, for a drawn test whose examples are dear"
LONG = "long: with --dist worksteal it begins early, or it would still run when all others have ended"
SOAK = "soak: goes on for as long as --soak SECONDS says, and begins as early as what is long"

SHRINKING = "thorough"
"""The profile that looks for the smallest example of a failure; to look takes many times as long as to find one."""
FINDING = (Phase.explicit, Phase.reuse, Phase.generate, Phase.target)

# No deadline: an example of 8 ranks on a busy machine takes as long as it takes; runs have their own timeout.
for profile, most in EXAMPLES.items():
    shrinks = profile == SHRINKING
    settings.register_profile(
        profile,
        max_examples=most,
        deadline=None,
        phases=tuple(Phase) if shrinks else FINDING,
        report_multiple_bugs=shrinks,  # else the first failure ends the test
    )
settings.load_profile("suites")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the options of the suites' own tests."""
    group = parser.getgroup("suites")
    group.addoption("--accept-cpus", action="store_true", help="compare the hosts of a cluster without GPUs")
    group.addoption("--soak", type=seconds, default=0.0, metavar="SECONDS", help="go on with each soak for so long")


def seconds(text: str) -> float:
    """Reads the option's value.

    Raises:
        argparse.ArgumentTypeError: it is no number of seconds.
    """
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"--soak takes seconds, 0 or more, got {text!r}")
    return value


@pytest.fixture(scope="session")
def soak_seconds(request: pytest.FixtureRequest) -> float:
    """How long a soak goes on; 0 if nobody asks for one."""
    return float(request.config.getoption("--soak", 0.0))


def pytest_configure(config: pytest.Config) -> None:
    """Makes the markers known, and has the references of several workers share the cores."""
    for marker in (SHARE, LONG, SOAK):
        config.addinivalue_line("markers", marker)
    if (workers := workers_of(config)) > 1:
        import torch  # which the process that only hands out tests need not load

        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // workers))


def workers_of(config: pytest.Config) -> int:
    """How many workers of pytest-xdist share the tests, this process being one; 1 in any other process."""
    return int(getattr(config, "workerinput", {}).get("workercount", 1))


@pytest.hookimpl(wrapper=True, tryfirst=True)  # behind all others: they select the tests, and order them
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Generator[None]:
    """Shares the examples of each drawn test of the suites among its variants; lets long tests begin early."""
    yield
    _share_examples(items)
    # Perf tests keep their order, in which nobody else is on their GPUs.
    if (workers := workers_of(config)) > 1 and not any(_runs(item, "perf") for item in items):
        items[:] = early_first(items, workers, is_early=_is_early, file_of=lambda item: item.path)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Adds to the report of a drawn test that fails the command that finds its smallest example."""
    report = yield
    if report.failed and report.when == "call" and _is_drawn(item) and Phase.shrink not in settings().phases:
        command = f'pytest "{item.nodeid}" --hypothesis-profile={SHRINKING}'
        report.sections.append(("for the smallest example", command))
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    """Notes how many ranks the test has, for the messages of its assertions."""
    ranks = getattr(item, "funcargs", {}).get("ranks")
    item.config.stash[WORLD_SIZE] = getattr(ranks, "world_size", None)
    yield


def pytest_assertrepr_compare(config: pytest.Config, op: str, left: object, right: object) -> list[str] | None:
    """Names the first item that differs, with the rank, in place of two nested lists."""
    if op != "==" or not isinstance(left, list | tuple | dict) or type(left) is not type(right):
        return None
    found = list(differences(left, right))
    if not found:
        return None
    world_size = config.stash.get(WORLD_SIZE, None)
    by_rank = isinstance(left, list) and isinstance(right, list) and len(left) == len(right) == world_size
    return in_words(found, world_size=world_size if by_rank else None)


def _is_early(item: pytest.Item) -> bool:
    ranks = item.get_closest_marker("ranks")
    return (
        _runs(item, "long")
        or _runs(item, "soak")
        or (ranks is not None and "isolation" in ranks.kwargs and _runs(item, "ranks"))
    )


def _runs(item: pytest.Item, mark: str) -> bool:
    return item.get_closest_marker(mark) is not None and item.get_closest_marker("skip") is None


def _is_drawn(item: pytest.Item) -> bool:
    return isinstance(item, pytest.Function) and getattr(item.function, "is_hypothesis_test", False)


def _share_examples(items: list[pytest.Item]) -> None:
    drawn = [
        item
        for item in items
        if isinstance(item, pytest.Function) and item.function.__module__.startswith("suites.") and _is_drawn(item)
    ]
    variants = Counter(item.function for item in drawn)
    shared: dict[object, int] = {}
    for item in {item.function: item for item in drawn}.values():
        mark = item.get_closest_marker("examples")
        share = 1.0 if mark is None else float(mark.args[0])
        most = settings().max_examples
        if "ranks" not in item.fixturenames:  # an example takes hardly any time
            most = max(most, EXAMPLES["suites"])
        # Two at least: hypothesis begins with the simplest of all, whatever the seed.
        shared[item.function] = max(2, math.ceil(most * share / variants[item.function]))
        settings(max_examples=shared[item.function])(item.function)
    for item in drawn:
        item.stash[DEALT] = shared[item.function]
