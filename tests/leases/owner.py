"""A process of its own that leases, tells and releases as it is told; started by owners.Owner."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from pytest_gpuperf.leases.folder import LeaseError
from pytest_gpuperf.leases.lease import Lease, SharedLease
from pytest_gpuperf.leases.leases import Leases

SLEEP = ["sleep", "60"]


class Commands:
    """What the process can be told to do."""

    def __init__(self, folder: Path, run: str) -> None:
        self.leases = Leases(folder, run=run)
        self.held: Lease | SharedLease | None = None

    def acquire(self, candidates: list[str], count: int, timeout: float, holder: str) -> Any:
        try:
            self.held = self.leases.acquire(candidates, count, holder=holder, timeout=timeout)
        except LeaseError as error:
            return {"error": str(error)}
        return list(self.held.resources)

    def share(self, candidates: list[str], count: int, timeout: float, holder: str, warm: list[list[str]]) -> Any:
        try:
            self.held = self.leases.share(candidates, count, warm=warm, holder=holder, timeout=timeout)
        except LeaseError as error:
            return {"error": str(error)}
        return list(self.held.resources)

    def stay(self, resources: list[str]) -> None:
        self.leases.stay(resources, "test_idle")

    def wanted_alone(self, resources: list[str]) -> bool:
        return self.leases.is_wanted_alone(resources)

    def release(self) -> None:
        assert self.held is not None
        self.held.release()

    def popen(self) -> int:
        # close_fds=False: only O_CLOEXEC keeps the child from the lock
        return subprocess.Popen(SLEEP, close_fds=False, stdout=subprocess.DEVNULL).pid

    def fork_and_exec(self) -> int:
        pid = os.fork()
        if pid == 0:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            os.execvp(SLEEP[0], SLEEP)
        return pid

    def fork(self) -> int:
        """A child that stays Python, and believes that the lease is its own."""
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            assert self.held is not None
            self.held.release()
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            os.write(writing, b".")
            signal.pause()
        os.read(reading, 1)  # the child has released
        return pid


if __name__ == "__main__":
    commands = Commands(Path(sys.argv[1]), sys.argv[2])
    for line in sys.stdin:
        name, arguments = json.loads(line)
        print(json.dumps(getattr(commands, name)(**arguments)), flush=True)
