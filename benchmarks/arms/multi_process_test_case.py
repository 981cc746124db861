"""PyTorch's MultiProcessTestCase as it comes: it spawns the ranks for each test."""

from __future__ import annotations

import os

from torch.testing._internal.common_distributed import MultiProcessTestCase

from benchmarks.arms.unittests import seconds_of_tests
from benchmarks.arms.workload import World, arguments, report, whole_test


class AllReduceTest(MultiProcessTestCase):
    """The test, whose ranks learn of their world from the environment: they are given no more than a name."""

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return int(os.environ["ARM_RANKS"])

    def setUp(self) -> None:
        """As its own tests do it."""
        super().setUp()
        self._spawn_processes()

    def test_all_reduce(self) -> None:
        """Runs on every rank."""
        whole_test(World(self.world_size, os.environ["ARM_GPUS"] == "1"), self.rank, self.file_name)


def main() -> None:
    """One test unmeasured, then the others."""
    asked = arguments()
    os.environ.update(ARM_RANKS=str(asked.world.size), ARM_GPUS=str(int(asked.world.gpus)))
    report({"test": seconds_of_tests(AllReduceTest, "test_all_reduce", 1 + asked.tests)[1:]})


if __name__ == "__main__":
    main()
