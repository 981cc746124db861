"""Runs unittest tests and takes their times, as both of PyTorch's classes are unittest's."""

from __future__ import annotations

import time
import unittest


class _Timed(unittest.TestResult):
    def __init__(self) -> None:
        super().__init__()
        self.moments: list[float] = []

    def startTest(self, test: unittest.TestCase) -> None:  # noqa: N802  # unittest's name
        super().startTest(test)
        self.moments.append(time.perf_counter())

    def stopTest(self, test: unittest.TestCase) -> None:  # noqa: N802  # unittest's name
        super().stopTest(test)
        self.moments.append(time.perf_counter())


def seconds_of_tests(case: type[unittest.TestCase], method: str, tests: int) -> list[float]:
    """Seconds of each run of the method, set-up and tear-down included; the first has the class's set-up as well.

    Raises:
        RuntimeError: a test did not pass.
    """
    result = _Timed()
    start = time.perf_counter()
    unittest.TestSuite(case(method) for _ in range(tests)).run(result)
    problems = [text for _, text in [*result.errors, *result.failures, *result.skipped]]
    if problems or len(result.moments) != 2 * tests:
        raise RuntimeError("\n".join(problems) or f"{len(result.moments) // 2} of {tests} tests ran")
    begun = [start, *result.moments[2::2]]
    return [end - begin for begin, end in zip(begun, result.moments[1::2], strict=True)]
