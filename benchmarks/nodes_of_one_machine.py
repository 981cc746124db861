"""Takes one machine for several nodes: starts a Ray node for each share of its GPUs, and runs pytest on them.

    python benchmarks/nodes_of_one_machine.py --nodes 2 --gpus 2 -- suites/multi_node -m perf

Each node is a ``ray start`` of its own, as on a machine of its own, with its GPUs and its NCCL_HOSTID. So NCCL takes
the nodes for machines, and reaches from one to another by sockets alone. Without ``--gpus`` ranks run on CPUs with
gloo. What stands behind ``--`` goes to pytest, beside ``--cluster``. All that was started ends with the run. The
commands are printed, so that they can be typed. Exits as pytest does.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import secrets
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HOST = "127.0.0.1"
STARTED = "Ray runtime started"  # what `ray start` prints once its node is up
START_TIMEOUT = 120.0  # seconds
STORE = 256 * 2**20  # bytes of a node's object store
WORKER_PORTS = 1000  # of each node: those of one machine must not share any
FIRST_WORKER_PORT = 20000
BETWEEN_NODES = {"NCCL_NET": "Socket", "NCCL_IB_DISABLE": "1", "NCCL_MNNVL_ENABLE": "0"}
"""Leaves NCCL nothing but sockets between nodes, whatever adapters the machine has."""


def token() -> dict[str, str]:
    """A token for this cluster alone, unless the user has one: Ray's ports listen on all interfaces."""
    if os.environ.get("RAY_AUTH_MODE"):
        return {}
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}


def start_command(number: int, port: int, gpus: int, cpus: int) -> list[str]:
    """How a node is started; the first one is the head.

    Args:
        number: of the node.
        port: of the head.
        gpus: of the node.
        cpus: of the node, as Ray counts them.
    """
    role = ["--head", f"--port={port}", "--include-dashboard=false"] if number == 0 else [f"--address={HOST}:{port}"]
    first = FIRST_WORKER_PORT + WORKER_PORTS * number
    return [
        *("ray", "start", *role, "--block", "--disable-usage-stats", f"--node-name=node-{number}"),
        *(f"--node-ip-address={HOST}", f"--num-gpus={gpus}", f"--num-cpus={cpus}", f"--object-store-memory={STORE}"),
        *(f"--min-worker-port={first}", f"--max-worker-port={first + WORKER_PORTS - 1}"),
    ]


def environment(number: int, gpus: int) -> dict[str, str]:
    """What a node has in its environment: GPUs of its own, and an identity for NCCL."""
    visible = ",".join(str(gpu) for gpu in range(number * gpus, (number + 1) * gpus))
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return {"CUDA_VISIBLE_DEVICES": visible, "NCCL_HOSTID": f"node-{number}", "PYTHONPATH": path}


@contextlib.contextmanager
def started(nodes: int, gpus: int, cpus: int, guard: Mapping[str, str]) -> Iterator[str]:
    """A cluster; its address.

    Args:
        nodes: how many.
        gpus: of each.
        cpus: of each.
        guard: variables with the token.

    Raises:
        RuntimeError: a node did not come up; with what it printed.
    """
    port = _free_port()
    with contextlib.ExitStack() as stack:
        folder = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="gp", dir="/tmp"))
        )  # sockets' paths are short
        for number in range(nodes):
            command = start_command(number, port, gpus, cpus)
            print(shlex.join([*(f"{key}={value}" for key, value in environment(number, gpus).items()), *command]))
            log = folder / f"node-{number}.log"
            environ = {**environment(number, gpus), **guard, "RAY_TMPDIR": str(folder)}
            stack.enter_context(_running(command, environ, log))
        yield f"{HOST}:{port}"


@contextlib.contextmanager
def _running(command: Sequence[str], environ: dict[str, str], log: Path) -> Iterator[None]:
    own = [sys.executable, "-m", "ray.scripts.scripts", *command[1:]]  # that of this interpreter, wherever Ray lies
    with log.open("w") as out:
        process = subprocess.Popen(
            own, env={**os.environ, **environ}, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        until = time.monotonic() + START_TIMEOUT
        while STARTED not in log.read_text():
            if process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"{shlex.join(command)} brought no node up; it printed:\n{log.read_text()}")
            time.sleep(0.1)
        yield
    finally:
        process.terminate()  # `ray start --block` ends its node's processes
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _status(process: subprocess.Popen[bytes]) -> int:
    """What the process exits with. Ctrl-C reaches it as well, and it has its summary to print then."""
    while True:
        with contextlib.suppress(KeyboardInterrupt):
            return process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
    return port


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs pytest on the nodes; its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument(
        "--gpus", type=int, default=0, help="of the machine; each node gets an equal share (default: 0)"
    )
    parser.add_argument("pytest", nargs="*", help="arguments of pytest, behind --")
    given = parser.parse_args(arguments)
    if given.nodes < 1 or given.gpus % given.nodes:
        parser.error(f"{given.gpus} GPUs cannot be dealt evenly to {given.nodes} nodes")
    cpus = max(1, (os.cpu_count() or 1) // given.nodes)
    guard = token()
    if guard:
        print("export RAY_AUTH_MODE=token RAY_AUTH_TOKEN=$(openssl rand -hex 32)")
    with started(given.nodes, given.gpus // given.nodes, cpus, guard) as address:
        command = ["-m", "pytest", *given.pytest, "--cluster", address, "--gpus", str(given.gpus)]
        print(shlex.join(["python", *command]), flush=True)
        between = {**(BETWEEN_NODES if given.gpus else {}), **os.environ, **guard}
        return _status(subprocess.Popen([sys.executable, *command], env=between))


if __name__ == "__main__":
    sys.exit(main())
