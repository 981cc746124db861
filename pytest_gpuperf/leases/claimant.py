"""The process that holds or waits for a resource, as lock files show it to others."""

import json
import os
import pwd
import re
import socket
import time
from dataclasses import asdict, dataclass
from typing import TypeAlias

HOLDER_CHARACTERS = 500  # a node id may hold a whole parameter; a line is read whole
NAME_CHARACTERS = 100  # of a user, a host or a resource
HIGHEST_PID = 2**31 - 1
_NAME = re.compile(rf"[A-Za-z0-9_-][A-Za-z0-9._-]{{0,{NAME_CHARACTERS - 1}}}")
END_OF_TIME = 1e12  # seconds; neither NaN nor an integer too long for a float is below
Json: TypeAlias = dict[str, object]


@dataclass(frozen=True, slots=True)
class Claimant:
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
    def of_this_process(cls, holder: str) -> "Claimant":
        """This process, which begins now to hold or wait."""
        return cls(os.getpid(), _read_user(), socket.gethostname(), holder[:HOLDER_CHARACTERS], time.time())

    @classmethod
    def from_json(cls, data: Json) -> "Claimant | None":
        """Reads what anybody may have written; None where it names no process."""
        pid, user, host, holder = (data.get(key) for key in ("pid", "user", "host", "holder"))
        since, used = data.get("since"), data.get("used_bytes")
        if not (isinstance(pid, int) and isinstance(user, str) and isinstance(host, str) and isinstance(holder, str)):
            return None
        if not 0 < pid <= HIGHEST_PID:
            return None
        if not isinstance(since, int | float) or not abs(since) < END_OF_TIME or not isinstance(used, int | None):
            return None
        user, host, holder = user[:NAME_CHARACTERS], host[:NAME_CHARACTERS], holder[:HOLDER_CHARACTERS]
        return cls(pid, user, host, holder, float(since), used)

    def to_json(self) -> Json:
        """The claimant as a JSON object."""
        return asdict(self)

    def words(self, now: float) -> str:
        """Names the process, its user and its test, and the seconds since it began.

        Args:
            now: Seconds since the epoch.
        """
        who = f"pid {self.pid} of {show(self.user)} on {show(self.host)}"
        return f"{who}, {show(self.holder)}, for {max(now - self.since, 0.0):.0f} s"


def show(text: object) -> str:
    """Another user's text, or an error that holds it, on one line that no terminal and no workflow runner obeys."""
    return repr(text).replace("##[", "## [")  # GitHub's runner looks for ##[error] anywhere in a line


def is_name(text: object) -> bool:
    """Whether this can name a resource: letters, digits, ``-``, ``_`` and ``.``, no more than 100."""
    return isinstance(text, str) and _NAME.fullmatch(text) is not None


def parse_names(data: object) -> frozenset[str] | None:
    """The resources that a line names; None where one of them can be no resource, or there are none."""
    if not isinstance(data, list) or not data or not all(is_name(name) for name in data):
        return None
    return frozenset(data)


def parse_json(line: str) -> Json | None:
    """Parses one line of JSON; None where it is no object."""
    try:
        data = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return data if isinstance(data, dict) else None


def read(line: str) -> Claimant | None:
    """Parses a lock file's line; None where it names no process."""
    data = parse_json(line)
    return None if data is None else Claimant.from_json(data)


def _read_user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a container often runs as a number without a name
        return str(os.getuid())
