"""The random bits that suites share are splitmix64's, computed here with Python's whole numbers."""

import pytest
import torch

from suites.shared.bits import random_bits

LAST = 2**64 - 1


def splitmix64(position: int, stream: int) -> int:
    """By Steele, Lea and Flood 2014, figure 16, with a stream's own start."""
    z = position * 0x9E3779B97F4A7C15 + stream * 0xD1342543DE82EF95 & LAST
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & LAST
    z = (z ^ z >> 27) * 0x94D049BB133111EB & LAST
    return z ^ z >> 31


@pytest.mark.parametrize("stream", [0, 77, 3 * 1024 + 5])
def test_bits_are_those_of_splitmix64(stream: int) -> None:
    found = random_bits(5, 505, stream=stream, device=torch.device("cpu")).tolist()
    assert [bits & LAST for bits in found] == [splitmix64(position, stream) for position in range(5, 505)]
