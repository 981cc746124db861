"""A fault has a time, however often a test runs its program."""

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pytest_gpuperf.features.mutating.faults import Fault, Kind, Site
from pytest_gpuperf.features.mutating.mutating import Mutating, Run

FAULT = Fault(Site("a.py", 1, "all_reduce", "", 0), Kind.SKIPPED)


def test_no_more_examples_run_than_without_the_fault() -> None:
    current = SimpleNamespace(item=SimpleNamespace(nodeid="test"), timeout=300.0)
    mutating = Mutating(cast(Any, SimpleNamespace(around=None, current=current)), print, Path(), 60.0, print)
    mutating.runs["test"] = Run(FAULT, most=2)
    mutating.enter(print, (), {})
    mutating.enter(print, (), {})
    with pytest.raises(pytest.fail.Exception, match="an example has failed, so that the fault counts as noticed"):
        mutating.enter(print, (), {})


def test_a_program_gets_what_is_left_and_none_begins_later() -> None:
    current = SimpleNamespace(item=SimpleNamespace(nodeid="test"), timeout=300.0)
    ranks = SimpleNamespace(around=None, current=current)
    mutating = Mutating(cast(Any, ranks), print, Path(), 60.0, print)
    assert ranks.around is mutating
    mutating.runs["test"] = run = Run(FAULT, time.monotonic() + 100)
    _, args, _ = mutating.enter(print, (1,), {})
    assert args == (FAULT, "1.1", print, (1,), {})
    assert 50 < current.timeout <= 100
    run.until = time.monotonic() - 1
    with pytest.raises(pytest.fail.Exception, match="the time of this fault is up, so that it counts as noticed"):
        mutating.enter(print, (), {})
