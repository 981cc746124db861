"""The highest figures that the links of a machine allow."""


def busbw_limit(op: str, world_size: int, line_rate: float, multicast: bool) -> float:
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
