"""Versions and variables with which launches ran: what is usual among them, and what differs now."""

from collections import Counter
from collections.abc import Iterable, Mapping

_VARIABLES = ("NCCL_", "NVSHMEM_", "TORCH_", "CUDA_")
_VERSIONS = (
    "nccl",
    "driver",
    "application clock",
    "pcie",
    "gpu numa nodes",
    "numa binding",
    "ecc",
    "nvidia-cublas",
    "cuda",
    "nvidia-",
    "torch",
    "triton",
    "cpu numa nodes",
    "cpu cores",
    "kernel",
    "python",
)


def differing(recorded: Iterable[Mapping[str, str]], now: Mapping[str, str]) -> Mapping[str, tuple[str, str]]:
    """What is another now than in most of the recorded launches.

    A variable, whose name is in capitals, is not set where a launch does not tell it. A version that is not told is
    unknown: earlier launches told fewer of them, so only those that tell it count.

    Args:
        recorded: The environment of each launch.
        now: The one to hold against them.

    Returns:
        Names in order, with what most launches had and what is there now; empty for a variable that is not set.
    """
    launches = list(recorded)
    found = {}
    for name in sorted({*now, *(name for launch in launches for name in launch if name.isupper())}):
        then, is_now = _count_values(name, launches), now.get(name, "")
        if 2 * then[is_now] < then.total():
            found[name] = then.most_common(1)[0][0], is_now
    return found


def sort_by_likelihood(differs: Mapping[str, tuple[str, str]]) -> list[tuple[str, tuple[str, str]]]:
    """The differences in the order in which they are likely to move a metric.

    Somebody set a variable on purpose, so variables come first, and NCCL's before others. Of versions, those of what
    moves data and computes come before those of what only starts it. The setup of GPUs and host stands among them.
    """

    def rank(item: tuple[str, tuple[str, str]]) -> tuple[int, str]:
        name = item[0]
        if name.isupper():
            return next(place for place, start in enumerate((*_VARIABLES, "")) if name.startswith(start)), name
        place = next((place for place, start in enumerate(_VERSIONS) if name.startswith(start)), len(_VERSIONS))
        return len(_VARIABLES) + 1 + place, name

    return sorted(differs.items(), key=rank)


def find_usual(launches: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """What most launches ran with, by name; what most of them had not set is missing."""
    known = list(launches)
    names = sorted({name for launch in known for name in launch})
    most = {name: _count_values(name, known).most_common(1)[0][0] for name in names}
    return {name: value for name, value in most.items() if value}


def _count_values(name: str, launches: Iterable[Mapping[str, str]]) -> Counter[str]:
    return Counter(launch.get(name, "") for launch in launches if name in launch or name.isupper())
