"""A class of PyTorch's MultiProcessTestCase on this plugin's ranks, by a real pytest run of ``adopted_module.py``."""

from __future__ import annotations

from benchmarks.arms.plugin import named, run
from benchmarks.arms.workload import arguments, report


def main() -> None:
    """Reports the first test of each kind separately: the class's starts the ranks, and the other's gets its own."""
    tests = run(arguments(), module="adopted_module")
    first, *adopted = [test.seconds for test in tests if test.name.startswith("Sums::")]
    _, *native = [test.seconds for test in named(tests, "test_native")]
    report({"first": [first], "adopted": adopted, "native": native})


if __name__ == "__main__":
    main()
