"""Gathers the facts of this machine; each reader stands alone."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from pytest_gpuperf.features.doctor.facts import Facts
from pytest_gpuperf.features.doctor.readers.isolation import read_isolation
from pytest_gpuperf.features.doctor.readers.network import read_network
from pytest_gpuperf.features.doctor.readers.processes import read_processes
from pytest_gpuperf.features.doctor.readers.software import read_software
from pytest_gpuperf.features.doctor.readers.system import read_system
from pytest_gpuperf.features.doctor.readers.variables import read_configured, read_unreadable, read_variables
from pytest_gpuperf.hardware.device import Devices


def gather(
    devices: Devices, environ: Mapping[str, str] = os.environ, root: Path = Path("/"), *, counts: bool = False
) -> Facts:
    """Looks at this machine. Starts no process, creates no CUDA context, and writes nothing.

    Args:
        devices: The vendor's library.
        environ: The environment that programs will run in.
        root: Where proc, sys and dev are; tests have a folder of their own.
        counts: Whether to count what crosses PCIe, 40 ms a GPU.
    """
    inspection = devices.inspect()
    return Facts(
        inspection=inspection,
        system=read_system(root, tuple(sorted(os.sched_getaffinity(0)))),
        isolation=read_isolation(root, environ),
        network=read_network(root, environ),
        software=read_software(),
        variables=read_variables(environ),
        configured=read_configured(root, environ),
        unreadable=read_unreadable(root, environ),
        pcie_traffic=devices.pcie_traffic() if counts else {},
        processes=read_processes(root, (pid for gpu in inspection.gpus for pid in gpu.processes or ())),
    )
