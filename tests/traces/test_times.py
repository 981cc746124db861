"""Compute, communication and exposed communication of a rank."""

import pytest

from pytest_gpuperf.traces.times import compute_rank_times
from tests.traces.kineto import events, gloo_step, gpu_step, kernel, launch, x


def microseconds(*of: dict[str, object], device: str = "cuda:0") -> list[float]:
    found = compute_rank_times(events(*of, device=device))
    return [round(1e6 * value, 2) for value in (found.step, found.compute, found.communication, found.exposed)]


def test_what_is_exposed_is_communication_while_no_kernel_computes() -> None:
    assert microseconds(*gpu_step(0.0, exposed=10.0)) == [60.0, 50.0, 50.0, 10.0]


def test_what_compute_covers_is_not_exposed() -> None:
    assert microseconds(*gpu_step(0.0, exposed=-5.0)) == [50.0, 50.0, 35.0, 0.0]


def test_kernels_that_overlap_count_once() -> None:
    twice = [*gpu_step(0.0), launch(8.0, 5), kernel("gemm beside it", 25.0, 50.0, 5, tid=9)]
    assert microseconds(*twice) == [60.0, 55.0, 50.0, 5.0]


def test_a_copy_hides_nothing() -> None:
    copying = [*gpu_step(0.0), launch(8.0, 5), x("gpu_memcpy", "Memcpy DtoH", 70.0, 10.0, pid=0, tid=9, correlation=5)]
    assert microseconds(*copying) == [60.0, 50.0, 50.0, 10.0]


def test_what_a_clock_launches_between_the_steps_is_no_part_of_them() -> None:
    gate = [launch(-20.0, 3), kernel("spin_kernel", -10.0, 25.0, 3), launch(-19.0, 4)]
    token = kernel("ncclDevKernel_AllReduce", 15.0, 5.0, 4, tid=20)
    assert microseconds(*gate, token, *gpu_step(0.0)) == [60.0, 50.0, 50.0, 10.0]


def test_the_median_of_the_steps_counts() -> None:
    steps = [gpu_step(0.0, 1, 90.0), gpu_step(1000.0, 2, 10.0), gpu_step(2000.0, 3, 12.0)]
    assert microseconds(*(event for step in steps for event in step)) == [62.0, 50.0, 52.0, 12.0]


def test_with_gloo_operators_compute_and_those_that_issue_a_collective_do_not() -> None:
    # From the step's mark to gloo's end; 30 us of aten::mm within gloo's 60; its own copy is no compute.
    assert microseconds(*gloo_step(0.0), device="cpu") == [100.0, 30.0, 60.0, 30.0]


def test_a_trace_without_steps_is_refused() -> None:
    with pytest.raises(ValueError, match="the trace of rank 0 has no step of its program"):
        microseconds(kernel("alone", 0.0, 1.0, 1))


def test_a_trace_of_a_gpu_without_its_kernels_is_refused() -> None:
    with pytest.raises(ValueError, match=r"the trace of rank 0 has no event of cuda:0: torch\.profiler could not use"):
        microseconds(*gloo_step(0.0))
