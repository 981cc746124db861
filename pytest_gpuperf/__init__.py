"""Run a program on N ranks, check what it computed, time it on the device, and judge the time.

Importing this package imports neither torch nor pytest's internals: ``pytest --help`` stays quick.
"""

from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    # Type checkers follow these alone; when the code runs, each feature names what it adds.
    from pytest_gpuperf.api.perf import Perf
    from pytest_gpuperf.api.ranks import Ranks
    from pytest_gpuperf.features.adopted.settings import on_ranks as on_ranks
    from pytest_gpuperf.features.parity.census import census as census
    from pytest_gpuperf.features.parity.fixture import Parity as Parity
    from pytest_gpuperf.features.parity.recording import parity_record as parity_record
    from pytest_gpuperf.features.parity.watching import watch as watch
    from pytest_gpuperf.features.profiling.profiler import ProfileWarning as ProfileWarning
    from pytest_gpuperf.figures.comparison import Comparison
    from pytest_gpuperf.figures.matrix import Matrix
    from pytest_gpuperf.figures.metric import Metric
    from pytest_gpuperf.figures.overlap import Overlap
    from pytest_gpuperf.figures.readings import Readings
    from pytest_gpuperf.figures.search import Infeasible, Search, Trial
    from pytest_gpuperf.figures.sweep import Sweep
    from pytest_gpuperf.figures.timing import Timing
    from pytest_gpuperf.figures.work import Exchange, Work
    from pytest_gpuperf.hardware.device import Health
    from pytest_gpuperf.hardware.nccl_log import NcclLog
    from pytest_gpuperf.ranks.context import Context
    from pytest_gpuperf.ranks.failures import CollectiveMismatch, RankDied, RankError, RankTimeout, ResultError
    from pytest_gpuperf.run.patches import PatchWarning
    from pytest_gpuperf.run.rank_supply import LeakWarning
    from pytest_gpuperf.timing.stepping import Resettable

__all__ = [
    "CollectiveMismatch",
    "Comparison",
    "Context",
    "Exchange",
    "GiB",
    "Health",
    "Infeasible",
    "KiB",
    "LeakWarning",
    "Matrix",
    "Metric",
    "MiB",
    "NcclLog",
    "Overlap",
    "PatchWarning",
    "Perf",
    "RankDied",
    "RankError",
    "RankTimeout",
    "Ranks",
    "Readings",
    "Resettable",
    "ResultError",
    "Search",
    "Sweep",
    "Timing",
    "Trial",
    "Work",
]

KiB, MiB, GiB = 1024, 1024**2, 1024**3

_HOMES = {
    "CollectiveMismatch": "ranks.failures",
    "Comparison": "figures.comparison",
    "Context": "ranks.context",
    "Exchange": "figures.work",
    "Health": "hardware.device",
    "Infeasible": "figures.search",
    "LeakWarning": "run.rank_supply",
    "Matrix": "figures.matrix",
    "Metric": "figures.metric",
    "NcclLog": "hardware.nccl_log",
    "Overlap": "figures.overlap",
    "PatchWarning": "run.patches",
    "Perf": "api.perf",
    "RankDied": "ranks.failures",
    "RankError": "ranks.failures",
    "RankTimeout": "ranks.failures",
    "Ranks": "api.ranks",
    "Readings": "figures.readings",
    "Resettable": "timing.stepping",
    "ResultError": "ranks.failures",
    "Search": "figures.search",
    "Sweep": "figures.sweep",
    "Timing": "figures.timing",
    "Trial": "figures.search",
    "Work": "figures.work",
}


def __getattr__(name: str) -> Any:
    """The public name's own module is imported only when the name is asked for."""
    if name == "__version__":
        return version("pytest-gpuperf")
    from importlib import import_module

    if name in _HOMES:
        return getattr(import_module(f"pytest_gpuperf.{_HOMES[name]}"), name)
    if not name.startswith("_"):
        from pytest_gpuperf.features import find_public

        if home := find_public(name):
            return getattr(import_module(home), name)
    raise AttributeError(f"module 'pytest_gpuperf' has no attribute {name!r}")
