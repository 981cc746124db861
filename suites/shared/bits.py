"""Random bits that are a function of their position: no rank has to send or keep what another one has."""

from __future__ import annotations

import torch

OF_SIZE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""The integers whose bits a dtype of so many bytes is compared by: NaN differs from itself, bits do not."""
_CHUNK = 1 << 22  # elements that are made at a time: what is made needs a multiple of the memory


def signed(bits: int) -> int:
    """The int64 that has the lower 64 bits."""
    return (bits & (2**64 - 1)) - ((bits >> 63 & 1) << 64)


def random_bits(start: int, stop: int, *, stream: int, device: torch.device) -> torch.Tensor:
    """64 random bits for each position from ``start`` to ``stop``, by splitmix64 (Steele, Lea, Flood 2014).

    The same on every device.
    """
    z = torch.arange(start, stop, dtype=torch.int64, device=device)
    z.mul_(signed(0x9E3779B97F4A7C15)).add_(signed(stream * 0xD1342543DE82EF95))
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        z.bitwise_xor_(_shifted(z, shift)).mul_(signed(factor))
    return z.bitwise_xor_(_shifted(z, 31))


def _shifted(z: torch.Tensor, by: int) -> torch.Tensor:
    """To the right, with zeros from the left."""
    return (z >> by).bitwise_and_((1 << (64 - by)) - 1)


def odd_numbers(bits: torch.Tensor, half: int) -> torch.Tensor:
    """In place of random bits, odd whole numbers between -2 half and 2 half: each needs its last bit.

    Divisions of int64 are slow, so powers of two have none.
    """
    within = 2 * half
    whole = bits.bitwise_and_(within - 1) if within & (within - 1) == 0 else bits.remainder_(within)
    return whole.sub_(half).mul_(2).add_(1)


def fill_with_bits(tensor: torch.Tensor, *, stream: int) -> None:
    """Puts random bits in place of every bit of a tensor of one dimension."""
    bits = bits_of(tensor)
    for at in range(0, len(bits), _CHUNK):
        part = bits[at : at + _CHUNK]
        part.copy_(random_bits(at, at + len(part), stream=stream, device=tensor.device).to(bits.dtype))


def wrong_bits(tensor: torch.Tensor, *, stream: int) -> int:
    """How many elements of a tensor of one dimension are not what ``fill_with_bits`` puts there."""
    bits, wrong = bits_of(tensor), 0
    for at in range(0, len(bits), _CHUNK):
        part = bits[at : at + _CHUNK]
        expected = random_bits(at, at + len(part), stream=stream, device=tensor.device).to(bits.dtype)
        wrong += int((part != expected).sum())
    return wrong


def bits_of(tensor: torch.Tensor) -> torch.Tensor:
    """Views the tensor's memory as integers, without a copy."""
    return tensor.view(OF_SIZE[tensor.dtype.itemsize])


def digest(tensor: torch.Tensor) -> int:
    """A number of all bits, weighted by place: equal for equal tensors, and rarely otherwise."""
    bits = bits_of(tensor.reshape(-1)).to(torch.int64)
    places = torch.arange(1, bits.numel() + 1, device=bits.device)
    return int((bits * places).sum())
