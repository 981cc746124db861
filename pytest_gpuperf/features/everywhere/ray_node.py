"""Ray's processes on one node of the job: the commands that start them, and their environment."""

from __future__ import annotations

import os
import shlex
import socket
import sys
from collections.abc import Mapping
from pathlib import Path

from pytest_gpuperf.features.everywhere.launcher import strip_launcher
from pytest_gpuperf.features.everywhere.secret import MODE, OPEN, TOKEN, Secret

_RAY = (
    sys.executable,
    "-c",
    "import sys; from importlib.metadata import entry_points; "
    "(found,) = entry_points(group='console_scripts', name='ray'); sys.argv[0] = 'ray'; sys.exit(found.load()())",
)
"""The command ``ray`` of this interpreter, wherever PATH leads."""
_MOST_STORE = 2 * 2**30  # bytes of a node's object store, which takes the large arguments of a run
_SHARE = 0.3  # of /dev/shm
_LAST_LINES = 25


def make_environment(environ: Mapping[str, str], secret: Secret, folder: Path) -> dict[str, str]:
    """Return the environment of Ray's processes.

    Args:
        environ: that of this process.
        secret: the secret of the job.
        folder: for all that Ray writes.
    """
    own = {"RAY_TMPDIR": str(folder), "RAY_USAGE_STATS_ENABLED": "0"}
    usual = {
        "RAY_worker_niceness": "0",  # or whatever else runs on the node comes before ranks that measure
        "RAY_prestart_worker_first_driver": "0",  # processes that nobody needs
        "RAY_enable_worker_prestart": "0",
    }
    kept = {name: value for name, value in strip_launcher(environ).items() if name != "RAY_ADDRESS"}
    return {**usual, **kept, **own, **make_token_variables(secret)}


def make_token_variables(secret: Secret) -> dict[str, str]:
    """Return the variables by which Ray has the secret."""
    return {MODE: OPEN} if secret.kind == OPEN else {MODE: "token", TOKEN: secret.token}


def make_command_environment(environ: Mapping[str, str], secret: Secret, address: str, folder: Path) -> dict[str, str]:
    """Return the environment of the command on the first node.

    Args:
        environ: that of this process.
        secret: the secret of the job.
        address: host and port of Ray's head.
        folder: for all that Ray writes.
    """
    options = f"{environ.get('PYTEST_ADDOPTS', '')} --cluster={address}".strip()
    own = {"RAY_ADDRESS": address, "PYTEST_ADDOPTS": options, "RAY_USAGE_STATS_ENABLED": "0"}
    return {**strip_launcher(environ), **own, "RAY_TMPDIR": str(folder), **make_token_variables(secret)}


def make_head_command(address: str, port: int, name: str, shared_memory: int) -> list[str]:
    """Return the command that starts the head.

    Args:
        address: of this node.
        port: a free one.
        name: of this node.
        shared_memory: free bytes in /dev/shm.
    """
    return [*_RAY, "start", "--head", f"--port={port}", *_list_common_options(address, name, shared_memory)]


def make_node_command(head: str, address: str, name: str, shared_memory: int) -> list[str]:
    """Return the command that joins a node to the head.

    Args:
        head: host and port of the head.
        address: of this node.
        name: of this node.
        shared_memory: free bytes in /dev/shm.
    """
    return [*_RAY, "start", f"--address={head}", *_list_common_options(address, name, shared_memory)]


def find_free_port() -> int:
    """Return a port on which nothing listens now."""
    with socket.create_server(("", 0)) as server:
        return int(server.getsockname()[1])


def read_last_lines(output: Path) -> str:
    """Return the end of what a command has printed."""
    try:
        lines = output.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    return "\n".join(line for line in lines[-_LAST_LINES:] if line.strip())


def show_command(argv: list[str]) -> str:
    """Return a command as a user would type it."""
    return shlex.join(["ray", *argv[len(_RAY) :]])


def _list_common_options(address: str, name: str, shared_memory: int) -> list[str]:
    store = int(min(_MOST_STORE, max(_SHARE * shared_memory, 80 * 2**20)))
    return [
        f"--node-ip-address={address}",
        f"--node-name={name}",
        f"--num-cpus={len(os.sched_getaffinity(0))}",
        f"--object-store-memory={store}",
        "--disable-usage-stats",
        # Ports of Ray's own choice: another job may have Ray on this node.
        "--min-worker-port=0",
        "--max-worker-port=0",
        "--dashboard-agent-listen-port=0",
        "--include-log-monitor=false",
    ]
