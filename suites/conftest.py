"""hypothesis profiles of the suites: ``--hypothesis-profile=thorough`` draws more, ``ci`` and ``quick`` less.

The examples of a profile are for a drawn test as a whole: its world sizes and other parameters share them.
"""

import argparse
import math
from collections import Counter

import pytest
from hypothesis import settings

from suites.shared.examples import DEALT

EXAMPLES = {"suites": 100, "thorough": 2000, "ci": 50, "quick": 20}
SHARE = "examples(share): of the profile's examples, for a drawn test whose examples are dear"

# No deadline: an example of 8 ranks on a busy machine takes as long as it takes; runs have their own timeout.
for profile, most in EXAMPLES.items():
    settings.register_profile(profile, max_examples=most, deadline=None)
settings.load_profile("suites")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the option of the suites' soaks."""
    group = parser.getgroup("suites")
    group.addoption("--soak", type=minutes, default=0.0, metavar="MINUTES", help="go on with each soak for so long")


def minutes(text: str) -> float:
    """Reads the option's value.

    Raises:
        argparse.ArgumentTypeError: it is no number of minutes.
    """
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"--soak takes minutes, 0 or more, got {text!r}")
    return value


@pytest.fixture(scope="session")
def soak_seconds(request: pytest.FixtureRequest) -> float:
    """How long a soak goes on; 0 if nobody asks for one."""
    return 60 * float(request.config.getoption("--soak", 0.0))


def pytest_configure(config: pytest.Config) -> None:
    """Makes the marker known."""
    config.addinivalue_line("markers", SHARE)


@pytest.hookimpl(trylast=True)  # once it is known which of them are selected
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Shares the examples of each drawn test of the suites among its variants."""
    drawn = [
        item
        for item in items
        if isinstance(item, pytest.Function)
        and item.function.__module__.startswith("suites.")
        and getattr(item.function, "is_hypothesis_test", False)
    ]
    variants = Counter(item.function for item in drawn)
    shared: dict[object, int] = {}
    for item in {item.function: item for item in drawn}.values():
        mark = item.get_closest_marker("examples")
        share = 1.0 if mark is None else float(mark.args[0])
        shared[item.function] = math.ceil(settings().max_examples * share / variants[item.function])
        settings(max_examples=shared[item.function])(item.function)
    for item in drawn:
        item.stash[DEALT] = shared[item.function]
