"""``on_ranks`` and ``--adopt-classes``: tests of other harnesses' classes run on this plugin's ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import pytest

from pytest_gpuperf.features.adopted.settings import find_adoption
from pytest_gpuperf.option_names import GROUP, ModeAction
from pytest_gpuperf.ranks.spec import ISOLATIONS
from pytest_gpuperf.run.active import begin

if TYPE_CHECKING:
    from pytest_gpuperf.features.adopted.adopting import Adopting
    from pytest_gpuperf.run.session import Session

ADOPTING: pytest.StashKey[Adopting] = pytest.StashKey()
"""On the configuration, once a run has begun."""
_DEST = "gpuperf_adopt_classes"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Registers the option."""
    parser.getgroup(GROUP).addoption(
        "--adopt-classes",
        *(f"--adopt-classes={isolation}" for isolation in ISOLATIONS),
        action=ModeAction,
        const=ISOLATIONS[0],
        dest=_DEST,
        default=None,
        help="run the classes of other harnesses (torch's MultiProcessTestCase and MultiProcContinuousTest, "
        "DeepSpeed's DistributedTest) on ranks, as if each had @pytest_gpuperf.on_ranks: on warm ranks (group, the "
        "default), on ranks of each file (file) or of each test (process)",
    )


def pytest_gpuperf_is_given(config: pytest.Config) -> bool:
    """Returns whether classes are adopted that are not marked."""
    return read_isolation(config) is not None


def pytest_gpuperf_preload(config: pytest.Config, gpus: int) -> Mapping[str, str]:
    """Returns the modules of the harnesses, unless ranks have GPUs."""
    if gpus:
        return {}  # the harnesses of torch ask for GPUs when they are imported, which must not happen before a fork
    from pytest_gpuperf.features.adopted.torch_testing_internals import PRELOAD_IF_USED

    return PRELOAD_IF_USED


def pytest_gpuperf_begin(config: pytest.Config, run: Session) -> None:
    """Makes what adopts."""
    from pytest_gpuperf.features.adopted.adopting import Adopting

    config.stash[ADOPTING] = Adopting(
        run.ranks, run.supply, run.machine, read_isolation(config), requires_gpus=run.options.require_gpus
    )


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(collector: pytest.Collector, name: str, obj: object) -> None:
    """Adopts classes before pytest makes test objects of them."""
    if not isinstance(obj, type):
        return
    if find_adoption(obj) is not None:
        begin(collector.config)
    if (adopting := collector.config.stash.get(ADOPTING, None)) is not None:
        adopting.look_at(collector, name, obj)


def pytest_gpuperf_objection(item: pytest.Item) -> str | None:
    """Returns why a test's class, which should be adopted, cannot be."""
    adopting = item.config.stash.get(ADOPTING, None)
    return None if adopting is None else adopting.find_objection(item)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Runs a test of a plain class on its ranks."""
    __tracebackhide__ = True
    adopting = pyfuncitem.config.stash.get(ADOPTING, None)
    return (adopting is not None and adopting.run_plain(pyfuncitem)) or None


def read_isolation(config: pytest.Config) -> str | None:
    """Returns the isolation of classes that are not marked; None if they stay on their own harness."""
    chosen: str | None = config.getoption(_DEST)
    return chosen
