"""A real sshd on hosts, with a key that is theirs only: mpirun starts its daemons by it."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.hosts.hosts import Host

_PROGRAMS = ("sshd", "ssh", "ssh-keygen")


def lacking(*programs: str) -> str:
    """Return why this machine cannot have it, and other programs; empty if it can."""
    every = (*_PROGRAMS, *programs)
    lacks = [name for name in every if shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin") is None]
    return f"needs {', '.join(lacks)} (packages openssh-server and openmpi-bin)" if lacks else ""


def start(hosts: Sequence[Host], folder: Path) -> str:
    """Starts sshd on hosts; return the command that reaches them. It ends with the hosts.

    Args:
        hosts: the hosts.
        folder: a folder that they share.
    """
    own = folder / "ssh"
    own.mkdir()
    for name in ("key", "host_key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(own / name)], check=True)
    (own / "sshd_config").write_text(
        f"HostKey {own}/host_key\nAuthorizedKeysFile {own}/key.pub\nStrictModes no\nUsePAM no\n"
        "PasswordAuthentication no\nPidFile /run/sshd.pid\nPermitRootLogin prohibit-password\n"
    )
    (own / "config").write_text(
        f"Host *\n  IdentityFile {own}/key\n  IdentitiesOnly yes\n  StrictHostKeyChecking no\n"
        "  UserKnownHostsFile /dev/null\n  LogLevel ERROR\n  BatchMode yes\n  User root\n"
    )
    for host in hosts:
        host.run("sh", "-ec", f"mkdir -p /run/sshd; $(command -v sshd || echo /usr/sbin/sshd) -f {own}/sshd_config")
    return f"ssh -F {own}/config"
