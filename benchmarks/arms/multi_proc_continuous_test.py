"""PyTorch's MultiProcContinuousTest as it comes: ranks and process group live as long as the class."""

from __future__ import annotations

import os

from torch.testing._internal.common_distributed import MultiProcContinuousTest

from benchmarks.arms.unittests import seconds_of_tests
from benchmarks.arms.workload import World, all_reduce_checked, arguments, report


class AllReduceTest(MultiProcContinuousTest):
    """The test, whose ranks learn of their world from the environment: they are given no more than a name."""

    world_size = int(os.environ.get("ARM_RANKS", "-2"))  # -2 is the base's "not set"

    @classmethod
    def backend_str(cls) -> str:
        """``nccl`` or ``gloo``."""
        return _world().backend

    @classmethod
    def device_type(cls) -> str:
        """``cuda`` or ``cpu``."""
        return "cuda" if _world().gpus else "cpu"

    def test_all_reduce(self) -> None:
        """Runs on every rank."""
        all_reduce_checked(_world(), self.rank)


def _world() -> World:
    return World(int(os.environ["ARM_RANKS"]), os.environ["ARM_GPUS"] == "1")


def main() -> None:
    """The first test starts the ranks, the others find them."""
    asked = arguments()
    os.environ.update(ARM_RANKS=str(asked.world.size), ARM_GPUS=str(int(asked.world.gpus)))
    AllReduceTest.world_size = asked.world.size
    first, *others = seconds_of_tests(AllReduceTest, "test_all_reduce", 1 + 5 * asked.tests)
    report({"first": [first], "following": others})


if __name__ == "__main__":
    main()
