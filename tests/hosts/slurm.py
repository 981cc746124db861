"""A real Slurm on hosts: munge and slurmd on each, slurmctld on the first."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

from tests.hosts.hosts import Host

_PROGRAMS = ("slurmctld", "slurmd", "srun", "scancel", "munged")
_CONF = """
ClusterName=one
SlurmctldHost=h1
SlurmUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket=/run/munge/munge.socket.2
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SwitchType=switch/none
ReturnToService=2
SlurmctldTimeout=30
SlurmdTimeout=20
KillWait=5
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
StateSaveLocation=/var/spool/slurm/ctld
SlurmdSpoolDir=/var/spool/slurm/d
SlurmctldLogFile=/var/log/slurm/ctld.log
SlurmdLogFile=/var/log/slurm/d.log
SlurmdParameters=config_overrides
GresTypes=gpu
NodeName=h[1-{count}] CPUs={cpus} RealMemory=8000{gres} State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=60 State=UP
{more}
"""
_CGROUP = "CgroupPlugin=cgroup/v1\n"
"""Nothing here uses cgroups; the plugin for their version 2 needs systemd, which hosts lack."""
_UP = 60.0  # seconds


def lacking() -> str:
    """Return why this machine cannot have it; empty if it can."""
    lacks = [name for name in _PROGRAMS if shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin") is None]
    return f"needs {', '.join(lacks)} (packages slurm-wlm, slurm-wlm-basic-plugins and munge)" if lacks else ""


def start(
    hosts: Sequence[Host], folder: Path, more: str = "", cpus: int = 4, gpus: Sequence[Sequence[int]] = ()
) -> None:
    """Starts Slurm on hosts, and waits until all are idle. It ends with the hosts.

    Args:
        hosts: the hosts, h1 first.
        folder: a folder that they share.
        more: further lines of its configuration.
        cpus: of each host.
        gpus: the numbers of the GPUs of each host, equally many; none without GPUs.
    """
    own = folder / "slurm"
    own.mkdir()
    gres = f" Gres=gpu:{len(gpus[0])}" if gpus else ""
    (own / "slurm.conf").write_text(_CONF.format(count=len(hosts), cpus=cpus, gres=gres, more=more))
    files = [
        f"NodeName={host.name} Name=gpu File=/dev/nvidia{gpu}\n"
        for host, given in zip(hosts, gpus, strict=False)
        for gpu in given
    ]
    (own / "gres.conf").write_text("".join(files))
    (own / "cgroup.conf").write_text(_CGROUP)
    (own / "munge.key").write_bytes(os.urandom(1024))
    for host in hosts:
        host.run(
            "sh",
            "-ec",
            f"""
            for folder in /var/spool /var/log /etc/slurm; do
                mkdir -p $folder
                mount -t tmpfs -o size=64m,mode=755 tmpfs $folder
            done
            mkdir -p /run/munge /var/log/slurm /var/spool/slurm/ctld /var/spool/slurm/d
            chmod 755 /run /run/munge
            cp {own}/*.conf /etc/slurm/
            install -m 600 {own}/munge.key /run/munge/key
            munged --key-file /run/munge/key --socket /run/munge/munge.socket.2 --pid-file /run/munge/pid \\
                --log-file /run/munge/log --seed-file /run/munge/seed --force > /dev/null 2>&1
            {"slurmctld > /dev/null 2>&1" if host is hosts[0] else ":"}
            slurmd -N {host.name} > /dev/null 2>&1
            """,
        )
    until = time.monotonic() + _UP
    while True:
        idle = hosts[0].run("sinfo", "-h", "-N", "-t", "idle", "-o", "%N", check=False).stdout.split()
        if len(idle) == len(hosts):
            return
        assert time.monotonic() < until, hosts[0].run("sinfo", "-N", "-l", check=False).stdout
        time.sleep(0.2)


def left(host: Host) -> str:
    """Return the jobs that are left, one a line, once they have had time to end."""
    until = time.monotonic() + _UP
    while jobs := host.run("squeue", "-h", "-o", "%i %T", check=False).stdout.strip():
        if time.monotonic() > until:
            break
        time.sleep(0.2)
    return jobs
