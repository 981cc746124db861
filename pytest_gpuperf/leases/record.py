"""Who holds or waits for a resource, as lock files tell it to others."""

import json
import os
import pwd
import socket
import time
from dataclasses import asdict, dataclass
from typing import TypeAlias

HOLDER_CHARACTERS = 500  # a node id may hold a whole parameter; a record is read whole
END_OF_TIME = 1e12  # seconds; neither NaN nor an integer too long for a float is below
Json: TypeAlias = dict[str, object]


@dataclass(frozen=True, slots=True)
class Record:
    """One process that holds or waits."""

    pid: int
    user: str
    host: str
    """A container has its own host name, and its own numbers of processes."""
    holder: str
    """What it holds the resource for: a test's node id."""
    since: float
    """Seconds since the epoch."""
    used_bytes: int | None = None
    """Memory in use on the GPU when it was leased; None where nobody measured."""

    @classmethod
    def of_this_process(cls, holder: str) -> "Record":
        """The record of a process that begins now to hold or wait."""
        return cls(os.getpid(), _user(), socket.gethostname(), holder[:HOLDER_CHARACTERS], time.time())

    @classmethod
    def from_json(cls, data: Json) -> "Record | None":
        """Reads what anybody may have written; None where it is no record."""
        pid, user, host, holder = (data.get(key) for key in ("pid", "user", "host", "holder"))
        since, used = data.get("since"), data.get("used_bytes")
        if not (isinstance(pid, int) and isinstance(user, str) and isinstance(host, str) and isinstance(holder, str)):
            return None
        if not isinstance(since, int | float) or not abs(since) < END_OF_TIME or not isinstance(used, int | None):
            return None
        return cls(pid, user, host, holder, float(since), used)

    def to_json(self) -> Json:
        """The record as a JSON object."""
        return asdict(self)

    def words(self, now: float) -> str:
        """Names the process, its user and its test, and the seconds since it began.

        Args:
            now: Seconds since the epoch.
        """
        # repr: a control sequence in another user's text must not reach this user's terminal.
        who = f"pid {self.pid} of {self.user!r} on {self.host!r}"
        return f"{who}, {self.holder!r}, for {max(now - self.since, 0.0):.0f} s"


def json_object(line: str) -> Json | None:
    """Parses one line of JSON; None where it is no object."""
    try:
        data = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return data if isinstance(data, dict) else None


def read(line: str) -> Record | None:
    """Parses a lock file's line; None where it holds no record."""
    data = json_object(line)
    return None if data is None else Record.from_json(data)


def _user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a container often runs as a number without a name
        return str(os.getuid())
