"""Has each feature write what it has when a run ends, and learns what workers of xdist could not write."""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuperf.options import is_worker
from pytest_gpuperf.report.one_line import make_one_line

if TYPE_CHECKING:
    from pytest_gpuperf.run.session import Session

_HOOK = "pytest_gpuperf_end"
_FROM_WORKER = "gpuperf-unwritten"


class FeatureEnds:
    """Knows what features could not write; a plugin, which workers of xdist tell it too."""

    def __init__(self) -> None:
        self._of_workers: list[str] = []

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Learns what features could not write in a worker that has ended."""
        lines = getattr(node, "workeroutput", {}).get(_FROM_WORKER, [])
        self._of_workers += [f"{node.gateway.id}: {line}" for line in lines]

    def write(self, config: pytest.Config, run: Session) -> tuple[bool, list[str]]:
        """Has each feature write what it has, whatever becomes of another.

        Returns:
            Whether all was written, also in workers, and lines about what was not, unless the feature prints them.
        """
        plugins = [implementation.plugin for implementation in config.hook.pytest_gpuperf_end.get_hookimpls()]
        all_written, lines = True, [*self._of_workers]
        for plugin in reversed(plugins):  # in the order in which pluggy calls them
            others = [other for other in plugins if other is not plugin]
            end = config.pluginmanager.subset_hook_caller(_HOOK, others)
            try:
                written = all(end(config=config, run=run))
            # The failure of one feature must hide nothing else, and what pytest.fail raises is no Exception.
            except (Exception, pytest.fail.Exception, pytest.skip.Exception) as error:
                written = False
                lines.append(_describe(error))
            else:
                if not written and is_worker(config):  # which has no terminal where the feature could print why
                    lines.append(f"{config.pluginmanager.get_name(plugin)} could not write what it has")
            all_written = all_written and written
        if is_worker(config):
            vars(config)["workeroutput"][_FROM_WORKER] = lines
        return all_written and not lines, lines


def _describe(error: BaseException) -> str:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    what = make_one_line(f"{type(error).__name__}: {error}")
    return f"{_HOOK} raised {what} ({frame.filename}:{frame.lineno})"
