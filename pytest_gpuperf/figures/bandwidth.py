"""Algorithm and bus bandwidth as nccl-tests defines them.

Source: nccl-tests, doc/PERFORMANCE.md ("Bandwidth"), and the *GetBw functions of src/*.cu, v2.19.6.
"""

from __future__ import annotations

from collections.abc import Callable

# busbw / algbw for n ranks.
BUS_FACTORS: dict[str, Callable[[int], float]] = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
    "gather": lambda n: (n - 1) / n,
    "scatter": lambda n: (n - 1) / n,
    "broadcast": lambda n: 1.0,
    "reduce": lambda n: 1.0,
    "send_recv": lambda n: 1.0,
}


def algorithm_bandwidth(nbytes: int, seconds: float) -> float:
    """Size over time, in bytes per second.

    Args:
        nbytes: S of nccl-tests: the bytes of one rank's buffer for all_reduce, broadcast, reduce and
            send_recv; of the whole gathered output for all_gather and gather; of the whole input for
            reduce_scatter and scatter; of all that one rank holds for all_to_all.
        seconds: time of one operation.
    """
    return nbytes / seconds


def bus_bandwidth(op: str, world_size: int, nbytes: int, seconds: float) -> float:
    """The rate at which a rank's link is used if the operation moves no byte more than it must, in bytes/s.

    Raises:
        ValueError: nccl-tests defines no such operation; or there is one rank, which moves nothing.
    """
    if op not in BUS_FACTORS:
        raise ValueError(f"no bus bandwidth is defined for {op!r}; known are {', '.join(sorted(BUS_FACTORS))}")
    if world_size < 2:
        raise ValueError(f"bus bandwidth needs 2 ranks or more, got a world of {world_size}: nothing crosses a link")
    return algorithm_bandwidth(nbytes, seconds) * BUS_FACTORS[op](world_size)


def compute_busbw_limit(op: str, world_size: int, line_rate: float, multicast: bool) -> float:
    """Bounds busbw, as nccl-tests' doc/PERFORMANCE.md defines it, in bytes/s.

    busbw is defined so that the line rate bounds it whatever the collective and the number of ranks. The
    exception is all_reduce of S bytes over NVLink multicast (NVLS): the switch adds and copies, and one GPU
    moves only (1 + 1/n) S per direction instead of 2(n-1)/n S. Time is then at least (1 + 1/n) S / line_rate,

        and busbw = 2(n-1)/n * S / time <= line_rate * 2(n-1)/n / (1 + 1/n),

    which is 1.56 line rates for 8 ranks, and less than one for 2, where a ring does better.

    Args:
        op: The collective's name in torch.distributed, for example all_reduce.
        world_size: Ranks, at least 2.
        line_rate: Bytes/s of one GPU's links together, one direction.
        multicast: Whether NCCL may use NVLink multicast (NCCL_NVLS_ENABLE, on NVSwitch).

    Raises:
        ValueError: For fewer than 2 ranks, which move nothing over links.
    """
    if world_size < 2:
        raise ValueError(
            f"busbw of {op!r} with world_size {world_size!r} has no limit, expected at least 2 ranks: "
            "check busbw only where ranks exchange data"
        )
    if op != "all_reduce" or not multicast:
        return line_rate
    n = world_size
    return max(line_rate, line_rate * (2 * (n - 1) / n) / (1 + 1 / n))
