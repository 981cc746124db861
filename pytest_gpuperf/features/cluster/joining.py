"""Joins the nodes of a run, and says why it cannot have them. Imports Ray."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path

import pytest

from pytest_gpuperf.features.cluster import token
from pytest_gpuperf.features.cluster.failures import ClusterError
from pytest_gpuperf.options import Options
from pytest_gpuperf.ranks.forkserver_client import PRELOAD
from pytest_gpuperf.report.one_line import make_one_line
from pytest_gpuperf.run.nodes import RunNodes


def join_cluster(
    address: str,
    options: Options,
    preload_if_used: Callable[[int], Mapping[str, str]],
    *,
    patience: float,
    unlike: bool,
) -> RunNodes:
    """Returns the nodes of a run with ``--cluster address``.

    Args:
        address: of the cluster's head, or ``auto``.
        options: what the user asked for.
        preload_if_used: Returns the modules that ranks shall find loaded, by those that ask for them, for a number of
            GPUs.
        patience: seconds in which a node must answer.
        unlike: whether nodes may differ in hardware.

    Raises:
        pytest.UsageError: Ray is not installed, or the run cannot have the nodes.
    """
    if find_spec("ray") is None:
        raise pytest.UsageError("--cluster needs Ray: install pytest-gpuperf[cluster], the same version on all nodes")
    gpus = options.gpus
    try:
        os.environ[token.MODE] = token.read_mode(os.environ, Path.home())  # Ray reads it when it is imported
        from pytest_gpuperf.features.cluster.cluster import Cluster
        from pytest_gpuperf.features.cluster.lending import Lent

        used, lent = preload_if_used(1 if gpus is None else gpus), Lent.take_from(os.environ)
        first = () if lent is None else lent.first
        return Cluster.join(address, gpus, (*first, *PRELOAD), used, patience=patience, unlike=unlike, lent=lent)
    except ClusterError as error:
        raise pytest.UsageError(make_one_line(str(error))) from None
