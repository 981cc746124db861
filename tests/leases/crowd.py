"""One of many processes that lease at random and look whether they meet another; started by test_load."""

import os
import random
import sys
import time
from pathlib import Path

from pytest_gpuperf.leases.leases import Leases

RESOURCES = ("GPU-0", "GPU-1", "GPU-2", "GPU-3")
LEASES = 50


def main(folder: Path, claims: Path, seed: int) -> None:
    leases = Leases(folder)
    chance = random.Random(seed)
    for number in range(LEASES):
        candidates = chance.sample(RESOURCES, len(RESOURCES))
        with leases.acquire(candidates, chance.randint(1, 3), holder=f"{seed}-{number}", timeout=60.0) as lease:
            for resource in lease.resources:
                os.close(os.open(claims / resource, os.O_CREAT | os.O_EXCL))  # fails where another is
            time.sleep(chance.random() * 0.004)
            for resource in lease.resources:
                os.unlink(claims / resource)
    print(LEASES)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
