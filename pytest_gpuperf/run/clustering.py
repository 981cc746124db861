"""``--cluster``: the nodes of the run, and what is said if it cannot have them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_gpuperf.options import Options
from pytest_gpuperf.ranks.forkserver_client import PRELOAD
from pytest_gpuperf.report.one_line import one_line

if TYPE_CHECKING:
    from pytest_gpuperf.cluster.cluster import Cluster


def joined(options: Options, if_used: Callable[[int], Mapping[str, str]]) -> Cluster | None:
    """The cluster of the run; None without ``--cluster``. Ray is imported for it alone.

    Args:
        options: what the user said.
        if_used: Returns the modules that ranks shall find loaded, by those that ask for them, for a number of GPUs.

    Raises:
        pytest.UsageError: Ray is not installed, or the run cannot have the nodes.
    """
    if options.cluster is None:
        return None
    if find_spec("ray") is None:
        raise pytest.UsageError("--cluster needs Ray: install pytest-gpuperf[cluster], the same version on all nodes")
    from pytest_gpuperf.cluster import token
    from pytest_gpuperf.cluster.failures import ClusterError

    try:
        os.environ[token.MODE] = token.mode_of(os.environ, Path.home())  # Ray reads it when it is imported
    except ClusterError as error:
        raise pytest.UsageError(one_line(str(error))) from None
    from pytest_gpuperf.cluster.cluster import Cluster

    try:
        return Cluster.joined(
            options.cluster,
            options.gpus,
            PRELOAD,
            if_used(1 if options.gpus is None else options.gpus),
            patience=options.node_timeout,
            unlike=options.unlike_nodes,
        )
    except ClusterError as error:
        raise pytest.UsageError(one_line(str(error))) from None


def cluster_warning(cluster: Cluster | None) -> str:
    """A line for the header if the cluster may be open to anybody; else empty."""
    if cluster is None:
        return ""
    from pytest_gpuperf.cluster import token

    return token.warning(os.environ)
