"""Jobs on hosts that are apart, started by real launchers."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.hosts import slurm, ssh
from tests.hosts.hosts import Host, settled
from tests.hosts.hosts import lacking as lacking_hosts

EVERYWHERE = (sys.executable, "-m", "pytest_gpuperf", "everywhere")
TOKEN = {"RAY_AUTH_TOKEN": "0123456789abcdef"}
LAUNCHERS = ("srun", "mpirun", "torchrun", "PET_", "--head")
TEST = """
import os
import pytest
import torch
import torch.distributed as dist

def program(ctx):
    x = torch.ones(4) * (1 + ctx.rank)
    dist.all_reduce(x)
    return ctx.node_name, x[0].item()

@pytest.mark.ranks(nodes="all", per_node=1)
def test_all_nodes(ranks):
    got = ranks.run(program)
    assert len({node for node, _ in got}) == int(os.environ["NODES"])
    assert {value for _, value in got} == {sum(range(1, len(got) + 1))}
"""
SLEEPS = ("sh", "-c", "echo command runs; exec sleep 3600")
_SOON = 400.0  # seconds, that only end a test which hangs: a busy machine takes minutes


def lacking(launcher: str) -> str:
    """Return why jobs of a launcher cannot be tried here; empty if they can."""
    if launcher == "srun":
        return lacking_hosts() or slurm.lacking()
    return lacking_hosts() or (ssh.lacking("mpirun") if launcher == "mpirun" else "")


@dataclass
class Process:
    """One process that was started on a host, and what it prints."""

    host: Host
    process: subprocess.Popen[str]
    output: Path

    @property
    def text(self) -> str:
        """All that it has printed so far."""
        return self.output.read_text(errors="replace")

    def until(self, text: str, timeout: float = _SOON) -> None:
        """Waits until it has printed a text."""
        end = time.monotonic() + timeout
        while text not in self.text:
            assert self.process.poll() is None, f"{self.host.name} ended with {self.process.returncode}: {self.text}"
            assert time.monotonic() < end, f"{self.host.name} did not print {text!r}: {self.text}"
            time.sleep(0.1)

    def status(self, timeout: float = _SOON) -> int:
        """Return its exit status, once it has ended."""
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.host.name} did not end within {timeout:g} s: {self.text}") from None


@dataclass
class Job:
    """A launcher on hosts."""

    launcher: str
    hosts: Sequence[Host]
    folder: Path
    reach: str = ""
    """The command by which mpirun reaches hosts."""
    before: dict[str, dict[int, str]] = field(default_factory=dict)
    """The processes of each host that are no job's."""
    cpus: int = 2
    """Cores that Slurm gives to each process."""
    gpus: Sequence[Sequence[int]] = ()
    """The numbers of the GPUs that Slurm gives to each host, equally many; none without GPUs."""

    @classmethod
    def on(
        cls, launcher: str, hosts: Sequence[Host], folder: Path, cpus: int = 2, gpus: Sequence[Sequence[int]] = ()
    ) -> Job:
        """Return a job whose launcher is ready."""
        reach = ""
        if launcher == "srun":
            slurm.start(hosts, folder, cpus=2 * cpus, gpus=gpus)
        if launcher == "mpirun":
            reach = ssh.start(hosts, folder)
        (folder / "test_it.py").write_text(TEST)
        (folder / "pytest.ini").write_text("[pytest]\n")
        return cls(launcher, hosts, folder, reach, {host.name: host.processes() for host in hosts}, cpus, gpus)

    def start(
        self,
        *command: str,
        options: Sequence[str] = (),
        per_node: int = 1,
        env: Mapping[str, str] | None = None,
        before: str = "",
    ) -> list[Process]:
        """Starts the command of this project by the launcher; return its processes, that of the first host first.

        Args:
            command: what it runs.
            options: its options.
            per_node: how many processes each host has.
            env: what all of them have in their environment.
            before: what a shell does before it.
        """
        nodes = len(self.hosts)
        own = {**(env or {}), "NODES": str(nodes)}
        line = [*EVERYWHERE, "--lost-after", "5", *options]
        if before:
            line = ["sh", "-c", f'{before} exec "$@"', "sh", *line]
        match self.launcher:
            case "srun":
                tasks = [
                    f"--nodes={nodes}",
                    f"--ntasks-per-node={per_node}",
                    f"--cpus-per-task={self.cpus}",
                    "--kill-on-bad-exit=0",
                    *(f"--gpus-per-node={len(given)}" for given in self.gpus[:1]),
                ]
                return [self._start(self.hosts[0], own, ["srun", *tasks, *line, "--", *command])]
            case "mpirun":
                where = ["-H", ",".join(f"{host.name}:{per_node}" for host in self.hosts), "-np", str(nodes * per_node)]
                handed = ["-x", "PYTHONPATH", "-x", "PATH", "-x", "NODES"]
                mpirun = ["mpirun", "--allow-run-as-root", "--mca", "plm_rsh_agent", self.reach, "--bind-to", "none"]
                return [self._start(self.hosts[0], own, [*mpirun, *handed, *where, *line, "--", *command])]
            case "torchrun":
                meet = ["--rdzv-backend=c10d", "--rdzv-endpoint=h1:29400", "--rdzv-id=a", "--no-python"]
                torchrun = ["torchrun", f"--nnodes={nodes}", f"--nproc-per-node={per_node}", *meet]
                return [self._start(host, {**TOKEN, **own}, [*torchrun, *line, "--", *command]) for host in self.hosts]
            case "PET_":
                pet = {"PET_NNODES": str(nodes), "PET_MASTER_ADDR": "h1", "PET_MASTER_PORT": "29400"}
                return [
                    self._start(host, {**TOKEN, **own, **pet, "PET_NODE_RANK": str(k)}, [*line, "--", *command])
                    for k, host in enumerate(self.hosts)
                ]
            case _:
                line += ["--head", "h1", "--nodes", str(nodes)]
                return [self._start(host, {**TOKEN, **own}, [*line, "--", *command]) for host in self.hosts]

    def left(self, host: Host) -> list[str]:
        """Return what a job has left on a host, once it has had time to end."""
        files = host.run("sh", "-c", "ls -d /tmp/gpuperf-ray-* 2> /dev/null || :").stdout.split()
        return [*settled(host, self.before[host.name]), *files]

    def _start(self, host: Host, env: Mapping[str, str], command: Sequence[str]) -> Process:
        output = self.folder / f"output-{host.name}-{time.monotonic_ns()}"
        with output.open("w") as stream:
            process = host.start(*command, env=env, cwd=self.folder, output=stream.fileno())
        return Process(host, process, output)
