"""Hosts of one machine: each has a network, a host name, processes, mounts and a boot id of its own.

Their network interfaces are joined to a switch by veth pairs. ``tc`` limits a link's rate. ``nftables`` drops packets.
Each host lives as long as a pipe of this process is open. So hosts end with this process, however it ends.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tests.hosts import shares
from tests.whole_run import ROOT, environment

PROGRAMS = ("unshare", "nsenter", "ip", "tc", "nft", "ping")
_UNSHARE = ("unshare", "--net", "--uts", "--mount", "--ipc", "--pid", "--fork")
_INIT = """
import os, select, sys
print("up", flush=True)
while not select.select([0], [], [], 0.2)[0]:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]: pass
    except ChildProcessError: pass
"""
"""The first process of a host, with whose end the kernel ends all others of it."""
_HOLD = "import sys; print('up', flush=True); sys.stdin.read()"
_WORK = "while :; do :; done"
_START = 20.0  # seconds; a busy machine takes some
_numbers = itertools.count(1)


def lacking() -> str:
    """Return why this machine cannot have such hosts; empty if it can."""
    if os.geteuid() != 0:
        return "hosts in namespaces need root"
    if lacks := [name for name in PROGRAMS if shutil.which(name) is None]:
        return f"hosts in namespaces need {', '.join(lacks)} (packages util-linux, iproute2, nftables and iputils-ping)"
    done = subprocess.run(
        [
            "unshare",
            "--net",
            "--uts",
            "--mount",
            "--ipc",
            "--pid",
            "--fork",
            "ip",
            "link",
            "add",
            "br0",
            "type",
            "bridge",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    return f"this machine allows no namespaces: {done.stderr.strip()}" if done.returncode else ""


class Host:
    """One host. Commands run in its namespaces, in the environment of a whole run."""

    def __init__(
        self,
        number: int,
        folder: Path,
        network: Network,
        shared: Sequence[Path],
        debian: bool,
        before: Sequence[str] = (),
        gpus: Sequence[int] | None = None,
    ) -> None:
        self.name = f"h{number}"
        self.address = f"10.77.0.{number}"
        self._network = network
        self._port = f"{self.name}-{next(_numbers)}"
        self._before = before
        self._outer = subprocess.Popen(
            [*before, *_UNSHARE, "--mount-proc", "--kill-child", "--", sys.executable, "-I", "-S", "-c", _INIT],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        _await_up(self._outer)
        self._init = int(Path(f"/proc/{self._outer.pid}/task/{self._outer.pid}/children").read_text())
        self._set_up(number, folder / self.name, shared, debian)
        if gpus is not None:
            self._hide_gpus_beyond(gpus)

    def _hide_gpus_beyond(self, gpus: Sequence[int]) -> None:
        """Leaves the host no other GPUs of the machine: their device files cannot be opened, as in a container."""
        others = [str(file) for file in Path("/dev").glob("nvidia[0-9]*") if int(file.name[6:]) not in gpus]
        for file in others:
            self.run("sh", "-ec", f"mount --bind {file} {file}; mount -o remount,bind,nodev {file}", cwd=Path("/"))

    def _set_up(self, number: int, own: Path, shared: Sequence[Path], debian: bool) -> None:
        own.mkdir(parents=True)
        boot = str(uuid.uuid4())
        (own / "hostname").write_text(f"{self.name}\n")
        (own / "boot_id").write_text(f"{boot}\n")
        (own / "machine-id").write_text(boot.replace("-", "") + "\n")
        names = [f"127.0.1.1 {self.name}"] if debian else []
        names += [f"10.77.0.{k} h{k}" for k in range(1, 10) if not (debian and k == number)]
        (own / "hosts").write_text("\n".join(["127.0.0.1 localhost", *names]) + "\n")
        binds = "\n".join(f"mkdir -p '{path}'; mount --bind '/mnt{path}' '{path}'" for path in map(str, shared))
        here, there = str(self._network.pid), str(self._init)
        ends = ["netns", here, "type", "veth", "peer", "name", "eth0", "netns", there]
        _run(["ip", "link", "add", self._port, *ends])
        self._network.attach(self._port)
        script = f"""
            hostname {self.name}
            for file in hostname hosts machine-id; do
                [ -e /etc/$file ] || : > /etc/$file
                mount --bind {own}/$file /etc/$file
            done
            mount --bind {own}/boot_id /proc/sys/kernel/random/boot_id
            mount -t tmpfs -o size=4g tmpfs /dev/shm
            mount -t tmpfs tmpfs /mnt
            mkdir /mnt/tmp; mount --rbind /tmp /mnt/tmp
            mount -t tmpfs -o size=4g,mode=1777 tmpfs /tmp
            {binds}
            umount -l /mnt/tmp; umount /mnt
            mount -t tmpfs -o size=64m,mode=755 tmpfs /run
            ip link set lo up
            ip address add {self.address}/24 dev eth0
            ip link set eth0 up
        """
        self.run("sh", "-ec", script, cwd=Path("/"), timeout=_START)

    def start(
        self,
        *command: str,
        env: Mapping[str, str] | None = None,
        cwd: Path = ROOT,
        output: int | None = subprocess.PIPE,
    ) -> subprocess.Popen[str]:
        """Starts a command on the host; its errors are in its output."""
        program = Path(sys.executable).parent
        own = {"PATH": f"{program}:{os.environ['PATH']}", "HOME": "/root", **(env or {})}
        return subprocess.Popen(
            [*self._enter, "env", f"--chdir={cwd}", *command],
            env=environment(**own),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(
        self,
        *command: str,
        env: Mapping[str, str] | None = None,
        cwd: Path = ROOT,
        timeout: float = 120.0,
        check: bool = True,
    ) -> subprocess.CompletedProcess[str]:
        """Runs a command on the host to its end.

        Raises:
            AssertionError: it failed, and ``check`` is true.
        """
        with self.start(*command, env=env, cwd=cwd) as started:
            try:
                text, _ = started.communicate(timeout=timeout)
            except subprocess.TimeoutExpired:
                started.kill()
                raise
        assert not (check and started.returncode), f"{self.name}: {' '.join(command)[:200]}: {text}"
        return subprocess.CompletedProcess(list(command), started.returncode, text, "")

    def processes(self, containing: str = "") -> dict[int, str]:
        """Return the command lines of the host's processes, by their ids on the machine; without the first one."""
        namespace = os.stat(f"/proc/{self._init}/ns/pid").st_ino
        found = {}
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdecimal() and (entry / "ns/pid").stat().st_ino == namespace:
                    line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                    if line and containing in line and int(entry.name) != self._init:
                        found[int(entry.name)] = line
        return found

    def signal(self, containing: str, number: signal.Signals) -> int:
        """Sends a signal to the processes whose command lines contain a text; returns how many there are."""
        found = self.processes(containing)
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        return len(found)

    def load(self, processes: int) -> None:
        """Starts so many processes that never wait: other work on the host's cores."""
        self.run("sh", "-c", f"for _ in $(seq {processes}); do sh -c '{_WORK}' > /dev/null 2>&1 & done")

    def unload(self) -> None:
        """Ends this other work."""
        self.signal(_WORK, signal.SIGKILL)

    def rate(self, rate: str) -> None:
        """Limits the link, both directions, to a rate such as ``100mbit``."""
        shape = ["root", "handle", "1:", "tbf", "rate", rate, "burst", "128kb", "latency", "20ms"]
        self._network.run("tc", "qdisc", "replace", "dev", self._port, *shape)
        self.run("tc", "qdisc", "replace", "dev", "eth0", *shape)

    def lose(self, percent: float) -> None:
        """Loses so many percent of the packets that arrive."""
        self.drop(f"numgen random mod 1000 < {round(percent * 10)}")

    def drop(self, rule: str) -> None:
        """Drops arriving packets that match a rule of nftables, such as ``tcp dport 6379``, and no others."""
        table = f"netdev gpuperf {{ chain in {{ type filter hook ingress device eth0 priority 0; {rule} drop; }}; }};"
        self.drop_nothing()
        self.run("nft", f"table {table}")

    def drop_nothing(self) -> None:
        """Lets all packets arrive again."""
        self.run("sh", "-c", "nft delete table netdev gpuperf || :")

    def mtu(self, size: int) -> None:
        """Sets the size of the largest packet of the host's interface."""
        self.run("ip", "link", "set", "eth0", "mtu", str(size))

    def cut(self) -> None:
        """Pulls the cable."""
        self._network.run("ip", "link", "set", self._port, "down")

    def plug(self) -> None:
        """Plugs the cable in again."""
        self._network.run("ip", "link", "set", self._port, "up")

    def kill(self) -> None:
        """Ends all processes of the host at once, as a loss of power does: no other host hears of it."""
        if self._outer.poll() is None:
            self.cut()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._init, signal.SIGKILL)
        self._outer.wait(_START)

    def close(self) -> None:
        """Ends the host."""
        self.kill()
        self._outer.communicate()

    @property
    def _enter(self) -> list[str]:
        return [*self._before, "nsenter", "-t", str(self._init), "-m", "-u", "-i", "-n", "-p", "--"]


class Network:
    """The switch between the hosts."""

    def __init__(self) -> None:
        self._holder = subprocess.Popen(
            ["unshare", "--net", "--", sys.executable, "-I", "-S", "-c", _HOLD],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        _await_up(self._holder)
        self.pid = self._holder.pid
        """A process that is in the switch's network namespace."""
        self.run("ip", "link", "add", "br0", "type", "bridge")
        self.run("ip", "link", "set", "br0", "up")

    def run(self, *command: str) -> None:
        """Runs a command in the switch."""
        _run(["nsenter", "-t", str(self.pid), "-n", "--", *command])

    def attach(self, port: str) -> None:
        """Joins an interface to the switch."""
        self.run("ip", "link", "set", port, "master", "br0", "up")

    def close(self) -> None:
        """Ends the switch."""
        self._holder.communicate(timeout=_START)


@contextlib.contextmanager
def hosts(
    count: int,
    folder: Path,
    *,
    shared: Sequence[Path] = (),
    debian: bool = False,
    fair: bool = False,
    gpus: Sequence[Sequence[int]] = (),
) -> Iterator[list[Host]]:
    """Hosts h1, h2 and so on, with the addresses 10.77.0.1, 10.77.0.2 and so on.

    Args:
        count: how many.
        folder: a folder below /tmp that all hosts share, and that is this call's own.
        shared: other folders below /tmp that they share; they share what is not below /tmp or /run.
        debian: whether each resolves its own name to 127.0.1.1, as Debian's installer has it.
        fair: whether each has its own share of the cores, as large as any other's.
        gpus: the numbers of the machine's GPUs that each has; all have all of them without it.
    """
    below_tmp = [path for path in (folder, ROOT, Path(sys.prefix), *shared) if path.is_relative_to("/tmp")]
    every = [path for path in below_tmp if not any(path != one and path.is_relative_to(one) for one in below_tmp)]
    with contextlib.ExitStack() as stack:
        network = Network()
        stack.callback(network.close)
        made = []
        for number in range(1, count + 1):
            name = f"gpuperf-{os.getpid()}-{next(_numbers)}"
            before = stack.enter_context(shares.share(name, number)) if fair else ()
            own = gpus[number - 1] if gpus else None
            made.append(Host(number, folder / "hosts", network, sorted(set(every)), debian, before, own))
            stack.callback(made[-1].close)
        yield made


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_START)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"


def _await_up(process: subprocess.Popen[bytes]) -> None:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line == b"up\n", f"a host did not start: got {line!r}"


def settled(host: Host, before: Mapping[int, str], timeout: float = 30.0) -> list[str]:
    """Return the processes that a host has beyond those before, once there are none or after a timeout."""
    until = time.monotonic() + timeout
    while True:
        more = [line for pid, line in host.processes().items() if pid not in before]
        if not more or time.monotonic() > until:
            return more
        time.sleep(0.1)
