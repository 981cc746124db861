"""``--cluster``: ranks run on the nodes of a Ray cluster."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuperf.option_names import GROUP
from pytest_gpuperf.options import is_distributed, read_positive

if TYPE_CHECKING:
    from pytest_gpuperf.options import Options
    from pytest_gpuperf.run.nodes import RunNodes

_CLUSTER = "gpuperf_cluster"
_UNLIKE = "gpuperf_allow_unlike_nodes"
_TIMEOUT = "gpuperf_node_timeout"
_DEFAULT_TIMEOUT = "15"


def pytest_gpuperf_options() -> Mapping[str, Mapping[str, Any]]:
    """Returns the option that names the cluster."""
    return {
        "--cluster": {
            "metavar": "ADDRESS|auto",
            "help": "run ranks on the nodes of a Ray cluster: host:port of its head, or that of this machine (auto); "
            "needs pytest-gpuperf[cluster]",
        }
    }


def pytest_addoption(parser: pytest.Parser) -> None:
    """Registers what else can be said of a cluster."""
    parser.getgroup(GROUP).addoption(
        "--allow-unlike-nodes",
        dest=_UNLIKE,
        action="store_true",
        help="with --cluster: run on nodes whose GPUs or links differ",
    )
    text = "seconds in which a node of a cluster must answer; one that does not is lost"
    parser.addini(_TIMEOUT, text, default=_DEFAULT_TIMEOUT)


def pytest_gpuperf_is_given(config: pytest.Config) -> bool:
    """Returns whether anything else is said of a cluster."""
    return bool(config.getoption(_UNLIKE)) or config.getini(_TIMEOUT) != _DEFAULT_TIMEOUT


def pytest_gpuperf_check_options(config: pytest.Config) -> None:
    """Refuses what needs one machine."""
    read_patience(config)
    if config.getoption(_CLUSTER) is None:
        if config.getoption(_UNLIKE):
            raise pytest.UsageError("--allow-unlike-nodes is about the nodes of a cluster: add --cluster")
        return
    if is_distributed(config):
        raise pytest.UsageError(
            "--cluster gives one process all nodes, and xdist's workers would each want them: drop -n"
        )
    if (reason := config.hook.pytest_gpuperf_needs_one_machine(config=config)) is not None:
        raise pytest.UsageError(f"{reason}: drop --cluster")


def pytest_gpuperf_nodes(config: pytest.Config, options: Options) -> RunNodes | None:
    """Returns the nodes of the cluster; None without ``--cluster``. Ray is imported only for it."""
    address = config.getoption(_CLUSTER)
    if address is None:
        return None
    from pytest_gpuperf.features.cluster.joining import join_cluster
    from pytest_gpuperf.run.session import merge_preloads

    unlike = bool(config.getoption(_UNLIKE))
    return join_cluster(
        address, options, partial(merge_preloads, config), patience=read_patience(config), unlike=unlike
    )


def read_patience(config: pytest.Config) -> float:
    """Returns seconds in which a node must answer.

    Raises:
        pytest.UsageError: the ini key is no positive number.
    """
    return read_positive(config, _TIMEOUT)
