"""The secret of a job: Ray's token, and by which the job's processes know each other.

It travels by a channel that the launcher trusts: the environment, a file, or munge, which encrypts for one user.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pytest_gpuperf.features.everywhere.launcher import Place

TOKEN, TOKEN_FILE, MODE = "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_AUTH_MODE"
OPEN = "disabled"
_MUNGE_TIMEOUT = 15  # seconds
_MUNGE_LIFE = "120"  # seconds in which a credential must be read
_UID = re.compile(r"^UID:.*\((\d+)\)", re.MULTILINE)


class SecretError(Exception):
    """There is no secret, or this process cannot read it; the message says how to give one."""


@dataclass(frozen=True, slots=True)
class Secret:
    """A secret, and where it comes from. Processes of a job must have it from the same kind of source."""

    kind: str
    """``environment``, ``job key``, ``munge``, ``file`` or ``disabled``."""
    token: str

    def make_credential(self) -> str:
        """Return what the head says openly, from which only processes of the same user can read the token.

        Raises:
            SecretError: munge has failed.
        """
        if self.kind != "munge":
            return ""
        return _run_munge(["munge", f"--restrict-uid={os.getuid()}", f"--ttl={_MUNGE_LIFE}"], self.token)


def choose_secret(place: Place, environ: Mapping[str, str], home: Path) -> Secret:
    """Return the secret that the head of a job uses.

    Args:
        place: the place of this process.
        environ: its environment.
        home: its home folder.

    Raises:
        SecretError: the launcher has no channel for one, and the user has given none.
    """
    if environ.get(MODE, "").lower() == OPEN:
        return Secret(OPEN, OPEN)
    for kind in ("environment", "job key"):
        if token := _say_known(kind, place, environ, home):
            return Secret(kind, token)
    if place.launcher.startswith("Slurm") and shutil.which("munge"):
        fresh = Secret("munge", secrets.token_hex(32))
        try:
            fresh.make_credential()
        except SecretError:  # a cluster whose credentials are not munge's
            pass
        else:
            return fresh
    if token := _say_known("file", place, environ, home):
        return Secret("file", token)
    raise SecretError(
        f"{place.launcher} gives its processes no secret, and without one whoever reaches Ray's ports can run code on "
        f"the nodes: run `export {TOKEN}=$(openssl rand -hex 32)` before the launcher, and have it hand the variable "
        "to all nodes (in a pod, by a Secret), or put the same ~/.ray/auth_token on every node. If nobody else reaches "
        f"the nodes, set {MODE}={OPEN}"
    )


def read_shared_secret(kind: str, credential: str, place: Place, environ: Mapping[str, str], home: Path) -> Secret:
    """Return the secret of the job on a node that is not the first.

    Args:
        kind: the head's kind of secret.
        credential: what the head says openly.
        place: the place of this process.
        environ: its environment.
        home: its home folder.

    Raises:
        SecretError: this node lacks it.
    """
    if kind == "munge":
        text = _run_munge(["unmunge"], credential)
        metadata, _, token = text.partition("\n\n")
        uid = _UID.search(metadata)
        if uid is None or int(uid[1]) != os.getuid():
            raise SecretError(f"munge says that user {uid[1] if uid else '(none)'} wrote the head's credential")
        return Secret(kind, token)
    if (environ.get(MODE, "").lower() == OPEN) != (kind == OPEN):
        raise SecretError(f"{MODE} is {environ.get(MODE) or '(not set)'} here, and the head has a secret of {kind!r}")
    token = OPEN if kind == OPEN else _say_known(kind, place, environ, home)
    if not token:
        raise SecretError(f"the head has its secret from {_WHERE.get(kind, kind)}, and this node has none there")
    return Secret(kind, token)


_WHERE = {
    "environment": f"{TOKEN} or {TOKEN_FILE}",
    "job key": "OpenMPI's key of the job",
    "file": "~/.ray/auth_token",
}


def _say_known(kind: str, place: Place, environ: Mapping[str, str], home: Path) -> str:
    if kind == "environment":
        named = environ.get(TOKEN_FILE, "")
        return environ.get(TOKEN, "").strip() or (_read_text(Path(named)) if named else "")
    if kind == "file":
        return _read_text(home / ".ray" / "auth_token")
    if kind == "job key" and place.key:
        return hashlib.sha256(f"gpuperf everywhere {place.key}".encode()).hexdigest()
    return ""


def _read_text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _run_munge(command: list[str], given: str) -> str:
    try:
        done = subprocess.run(command, input=given, capture_output=True, text=True, check=False, timeout=_MUNGE_TIMEOUT)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SecretError(f"{command[0]} cannot be used: {error}") from None
    if done.returncode:
        raise SecretError(f"{command[0]} has failed: {done.stderr.strip() or done.stdout.strip()[:200]}")
    return done.stdout
