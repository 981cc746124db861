"""Publishes perf tests as benchmarks where pytest-benchmark is installed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_gpuperf.run.session import Session


def pytest_gpuperf_begin(config: pytest.Config, run: Session) -> None:
    """Registers what publishes."""
    if not config.pluginmanager.hasplugin("benchmark"):
        return
    from pytest_gpuperf.features.benchmarks.publishing import BenchmarkPlugin, is_asked_for
    from pytest_gpuperf.run.selection import is_perf

    # pytest-benchmark asks about the machine while it is configured, which is later.
    publisher = BenchmarkPlugin(
        run.machine, lambda: run.launch.software, is_perf, smoke=run.options.smoke, table=is_asked_for(config)
    )
    config.pluginmanager.register(publisher, "gpuperf-publisher")
