"""One of many processes that lease at random and look whether they meet another; started by test_load, test_sharing."""

import os
import random
import sys
import time
from contextlib import AbstractContextManager
from pathlib import Path

from pytest_gpuperf.leases.lease import Lease, SharedLease
from pytest_gpuperf.leases.leases import Leases

RESOURCES = ("GPU-0", "GPU-1", "GPU-2", "GPU-3")
LEASES = 50


def main(folder: Path, claims: Path, seed: int, run: str | None) -> None:
    """Leases alone, or now and then shares, where a run is given."""
    leases = Leases(folder, run=run)
    chance = random.Random(seed)

    def make_way() -> None:
        if leases.is_wanted_alone(leases.staying):
            leases.stay((), "leaves")

    for number in range(LEASES):
        candidates, count, holder = chance.sample(RESOURCES, len(RESOURCES)), chance.randint(1, 3), f"{seed}-{number}"
        alone = run is None or chance.random() < 0.3
        given: AbstractContextManager[Lease | SharedLease] = (
            leases.acquire(candidates, count, holder=holder, timeout=60.0, meanwhile=make_way)
            if alone
            else leases.share(candidates, count, holder=holder, timeout=60.0, meanwhile=make_way)
        )
        with given as lease:
            for resource in lease.resources:
                claim(claims, resource, seed, alone=alone)
            time.sleep(chance.random() * 0.004)
            for resource in lease.resources:
                os.unlink(claims / (resource if alone else f"{resource} {seed}"))
            if not alone and chance.random() < 0.3:
                leases.stay(lease.resources, holder)
        if chance.random() < 0.5:
            leases.stay((), holder)
    leases.stay((), "the end")
    print(LEASES)


def claim(claims: Path, resource: str, seed: int, *, alone: bool) -> None:
    """Fails where another is: any other, or one who is alone."""
    os.close(os.open(claims / (resource if alone else f"{resource} {seed}"), os.O_CREAT | os.O_EXCL))
    met = [name for name in os.listdir(claims) if name.partition(" ")[0] == resource]
    if (alone and len(met) > 1) or (not alone and resource in met):
        raise AssertionError(f"{seed} meets {met}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4] if len(sys.argv) > 4 else None)
