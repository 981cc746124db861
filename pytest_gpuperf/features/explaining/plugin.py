"""``--explain``: the variables that differ from a record are put back, and race the run as it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuperf.features.racing.options import race_options
from pytest_gpuperf.options import is_distributed

if TYPE_CHECKING:
    from pytest_gpuperf.features.explaining.search import Explaining
    from pytest_gpuperf.features.racing.suspects import Held
    from pytest_gpuperf.run.session import Session

_DEST = "gpuperf_explain"
EXPLAINING: pytest.StashKey[Explaining] = pytest.StashKey()
"""On the configuration of a run that judges by a record, if the user asked for it."""


def pytest_gpuperf_options() -> Mapping[str, Mapping[str, Any]]:
    """Returns the option."""
    return {
        "--explain": {
            "action": "store_true",
            "help": "for each metric that moved, put back the variables that differ from its baseline, race that "
            "against the run as it is, and name the variables that explain it",
        }
    }


@pytest.hookimpl(optionalhook=True)  # of races, which a run may lack
def pytest_gpuperf_holds_gains(config: pytest.Config) -> bool:
    """Returns whether metrics that moved are explained: a gain has a reason, too."""
    return bool(config.getoption(_DEST))


def pytest_gpuperf_check_options(config: pytest.Config) -> None:
    """Refuses runs in which no metric is held against a record, or not all in one process."""
    if not config.getoption(_DEST):
        return
    given = {
        "--update-baselines": config.getoption("gpuperf_update_baselines", None) is not None,
        "--smoke": config.getoption("gpuperf_smoke"),
        "--against, --against-python or --bisect": race_options(config).against is not None,
    }
    if other := next((name for name, is_given in given.items() if is_given), None):
        raise pytest.UsageError(
            f"--explain looks for what moved metrics since they were recorded, and {other} judges none by a baseline: "
            "drop one of them"
        )
    if is_distributed(config):
        raise pytest.UsageError("--explain races all metrics that moved together: drop -n")


def pytest_gpuperf_needs_one_machine(config: pytest.Config) -> str | None:
    """Returns why runs are explained on one machine."""
    if not config.getoption(_DEST):
        return None
    return "--explain races runs with other variables on one machine, and the nodes of a cluster have their own"


@pytest.hookimpl(trylast=True)  # what launches tests again has to be there
def pytest_gpuperf_begin(config: pytest.Config, run: Session) -> None:
    """Gets ready to explain, if the run judges by a record."""
    if not config.getoption(_DEST):
        return
    from pytest_gpuperf.features.explaining.search import Explaining, name_choices
    from pytest_gpuperf.features.explaining.undoing import Undoing
    from pytest_gpuperf.features.racing.means import MEANS

    if (judge := run.judge) is not None:
        means = config.stash[MEANS]
        config.stash[EXPLAINING] = Explaining(
            lambda verdict: Undoing.of(judge, verdict),
            lambda verdict, now: name_choices(judge, verdict, now),
            means.spending,
            means.open_arms,
            means.vacate,
            run.choosing.ask,
            means.say,
        )


def pytest_collection_finish(session: pytest.Session) -> None:
    """Notes how long the collection took, since the processes of a race need that too."""
    if EXPLAINING in session.config.stash and not session.config.option.collectonly:
        session.config.stash[EXPLAINING].note_collected()


@pytest.hookimpl(optionalhook=True)
def pytest_gpuperf_moved(config: pytest.Config, tests: Sequence[Held]) -> None:
    """Adds to each verdict on a metric that moved what explains it."""
    if explaining := config.stash.get(EXPLAINING, None):
        explaining.explain(tests)
