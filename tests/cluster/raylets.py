"""A Ray cluster on this machine, in a process of its own: what it is told on its input, it does.

Nothing of it outlives the process that started it: it adopts whatever Ray's processes leave behind, and ends it.
"""

import contextlib
import ctypes
import json
import os
import secrets
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from tests.cluster.light import default_worker, setup_worker
from tests.ranks.processes import descendants
from tests.warm_python import NOTE, WarmPython, note
from tests.whole_run import environment

_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
_NEW_MOUNTS = 0x20000  # linux/sched.h, CLONE_NEWNS
_PRIVATE, _BIND, _DETACH = 0x44000, 0x1000, 2  # linux/mount.h, MS_REC | MS_PRIVATE, MS_BIND and MNT_DETACH
CPUS = 2  # of each node, as Ray counts them, unless told otherwise
_SOON = {"RAY_health_check_period_ms": "500"}  # after five refusals a node counts as dead
_FEW = {"RAY_prestart_worker_first_driver": "0", "RAY_enable_worker_prestart": "0"}  # processes that nobody needs
_AGENT = "--dashboard_agent_command"
_STORE = 160 * 2**20  # bytes of a node's object store

# Ray's ports listen on all interfaces. Clusters and runs inherit these variables from whoever imports this.
os.environ.setdefault("RAY_AUTH_MODE", "token")
os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))


class Raylets:
    """The cluster, as a test holds it."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        told = self._answer()
        self.address: str = told["address"]
        self._daemons: Mapping[str, int] = told["daemons"]

    def note_daemons(self, folder: Path) -> None:
        """Writes a file with the processes of the daemons, by their nodes, and of the head's server, to a folder."""
        (folder / "daemons").write_text(json.dumps(self._daemons))

    def processes(self, title: str) -> list[int]:
        """The cluster's processes of a title."""
        return [pid for pid in descendants(self._process.pid) if _title(pid) == title]

    def add(self, name: str, **env: str) -> None:
        """Has a node join, and waits until it has.

        Args:
            name: of the node.
            env: what the node has in its environment besides; texts without spaces.
        """
        self._tell("add", name, *(f"{key}={value}" for key, value in env.items()))

    def add_with_mounts(self, name: str, mounts: Mapping[Path, Path], **env: str) -> None:
        """Has a node join that has other folders at some paths. Needs root.

        Args:
            name: of the node.
            mounts: what it has there, by path.
            env: what the node has in its environment besides.

        What forks for the other nodes sees other folders, so the node gets its own, unless ``env`` has none for it.
        """
        over = [f"{path}:{other}" for path, other in mounts.items()]
        self._tell("add", name, *(f"{key}={value}" for key, value in env.items()), "--", *over)

    def remove(self, name: str) -> None:
        """Ends a node, as its user would."""
        self._tell("remove", name)

    def _tell(self, *words: str) -> Mapping[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(" ".join(words) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> Mapping[str, Any]:
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], 120)
        line = self._process.stdout.readline() if ready else ""
        assert line, "the cluster did not come up"
        answer: Mapping[str, Any] = json.loads(line)
        return answer


@contextlib.contextmanager
def raylets(
    *names: str, cpus: int = CPUS, gpus: int = 0, env: Mapping[str, str] | None = None, forks: bool = True
) -> Iterator[Raylets]:
    """A cluster with these nodes, the head first.

    Args:
        names: of the nodes.
        cpus: of each, as Ray counts them.
        gpus: of each, for Ray alone: nothing looks whether they are there.
        env: what Ray's processes have in their environment besides.
        forks: whether nodes may fork what has imported torch; their ranks are then no descendants of Ray's daemons.
    """
    with tempfile.TemporaryDirectory(prefix="gp", dir="/tmp") as folder:  # sockets' paths must be short
        warm = note(subprocess.Popen, Path(folder)) if forks else {}
        environ = environment(**{"RAY_USAGE_STATS_ENABLED": "0", "RAY_TMPDIR": folder, **_SOON, **_FEW, **warm})
        environ |= env or {}
        command = [sys.executable, "-m", "tests.cluster.raylets", folder, str(cpus), str(gpus), *names]
        with subprocess.Popen(
            command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=folder
        ) as process:
            try:
                yield Raylets(process)
            finally:
                assert process.stdin is not None
                process.stdin.close()
                process.wait(60)


def _title(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:  # it has ended
        return ""


def _main(folder: str, cpus: str, gpus: str, head: str, *others: str) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    out = os.dup(1)
    os.dup2(2, 1)  # Ray prints there
    from ray._private import services
    from ray.cluster_utils import Cluster

    services.start_api_server = lambda *args, **kwargs: (None, None)  # the dashboard is started even if it is left out
    services.start_ray_process = partial(_without_dashboard_agent, services.start_ray_process)
    shape: dict[str, Any] = {"num_cpus": int(cpus), "num_gpus": int(gpus)}
    shape |= {"include_dashboard": False, "include_log_monitor": False, "object_store_memory": _STORE}
    shape |= {"setup_worker_path": setup_worker.__file__, "worker_path": default_worker.__file__}
    cluster = Cluster(initialize_head=True, head_node_args={"node_name": head, "no_monitor": True, **shape})
    nodes = {name: cluster.add_node(node_name=name, **shape) for name in others}

    mounts: Mapping[str, str] = {}
    warm: dict[str, WarmPython] = {}

    def say(**what: Any) -> None:
        os.write(out, json.dumps(what).encode() + b"\n")

    try:
        daemons = {"gcs_server": cluster.head_node, head: cluster.head_node, **nodes}
        processes = {
            name: node.all_processes["gcs_server" if name == "gcs_server" else "raylet"]
            for name, node in daemons.items()
        }
        say(address=cluster.address, daemons={name: started[0].process.pid for name, started in processes.items()})
        for line in sys.stdin:
            match line.split():
                case ["add", name, *words]:
                    end = (*words, "--").index("--")
                    own = dict(each.split("=", 1) for each in words[:end])
                    mounts = _mount(mounts, dict(each.split(":", 1) for each in words[end + 1 :]))
                    if mounts and {**os.environ, **own}.get(NOTE):
                        warm[name] = WarmPython(os.environ)
                        own |= note(warm[name].popen(), Path(folder))
                    nodes[name] = cluster.add_node(node_name=name, env_vars=own, **shape)
                case ["remove", name]:
                    cluster.remove_node(nodes.pop(name))
                    if python := warm.pop(name, None):
                        python.close()
            say(done=line.strip())
    finally:
        _kill_children()  # Ray's own end of a cluster takes 12 s or more


def _without_dashboard_agent(start: Callable[..., Any], command: list[str], *args: Any, **kwargs: Any) -> Any:
    """Starts a process of Ray; a daemon has, in place of the dashboard's agent that it waits for, one that sleeps."""
    given = dict(word.partition("=")[::2] for word in command)
    if _AGENT in given:
        for port in ("metrics_agent_port", "metrics_export_port", "dashboard_agent_listen_port"):
            (Path(given["--session_dir"]) / f"{port}_{given['--node_id']}").write_text("-1")  # as an agent without one
        command = [f"{_AGENT}=sleep infinity" if word.startswith(f"{_AGENT}=") else word for word in command]
    return start(command, *args, **kwargs)


def _mount(before: Mapping[str, str], mounts: Mapping[str, str]) -> Mapping[str, str]:
    """Has this thread, and what it starts from now on, see other folders at some paths; those of before no more."""
    if before or mounts:
        libc = ctypes.CDLL(None, use_errno=True)
        _require(libc.unshare(_NEW_MOUNTS))
        _require(libc.mount(None, b"/", None, _PRIVATE, None))
        for path in before:
            _require(libc.umount2(os.fsencode(path), _DETACH))
        for path, other in mounts.items():
            _require(libc.mount(os.fsencode(other), os.fsencode(path), None, _BIND, None))
    return mounts


def _require(result: int) -> None:
    if result:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _kill_children() -> None:
    until = time.monotonic() + 10
    while time.monotonic() < until:
        for pid in descendants(os.getpid()):  # a daemon may have started more meanwhile
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        try:
            os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        time.sleep(0.01)


if __name__ == "__main__":
    _main(*sys.argv[1:])
