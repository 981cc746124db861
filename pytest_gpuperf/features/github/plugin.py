"""Writes the job summary and the annotations of a workflow of GitHub."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_gpuperf.report.annotation import Annotation
    from pytest_gpuperf.report.terminal import Reported


def pytest_gpuperf_reports(config: pytest.Config, reported: Reported) -> None:
    """Registers what writes them."""
    from pytest_gpuperf.features.github.workflow import GitHub

    config.pluginmanager.register(GitHub(reported, lambda: _list_remarks(config)), "gpuperf-workflow")


def _list_remarks(config: pytest.Config) -> list[Annotation]:
    return [one for some in config.hook.pytest_gpuperf_annotations(config=config) for one in some]
