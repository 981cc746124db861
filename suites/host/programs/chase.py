"""A pointer chase in a few bytes of machine code: each load needs the address that the load before it has brought.

A step of Python's interpreter takes longer than a load from any cache, so the loop is not written in Python. ctypes
releases the GIL while the loop runs.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Chase: TypeAlias = Callable[[int, int], int]
"""Takes an address and a number of steps, and returns the address at which the last step ends."""
Words: TypeAlias = npt.NDArray[np.uint64]

# Arguments: the address, the number of steps. Result: the address after the last step.
CODE = {
    "x86_64": bytes.fromhex(
        "488b3f"  # next: mov rdi, [rdi]
        "48ffce"  #       dec rsi
        "75f8"  #         jnz next
        "4889f8"  #       mov rax, rdi
        "c3"  #           ret
    ),
    "aarch64": bytes.fromhex(
        "000040f9"  # next: ldr x0, [x0]
        "210400f1"  #       subs x1, x1, #1
        "c1ffff54"  #       b.ne next
        "c0035fd6"  #       ret
    ),
}
LINE = 64
"""Bytes from one place of a ring to the next: the line of a cache, so that no load brings a second place."""
_WORDS = LINE // 8


class NoChase(RuntimeError):
    """This process cannot run the machine code; the message has the reason."""


def chase_of(machine: str = "") -> Chase:
    """Put the machine code into executable memory, and return a function that calls it.

    The code is mapped from a file in memory, as a library is. The kernel then makes the instruction cache see it.

    Args:
        machine: The processor's architecture; empty: this machine's.

    Raises:
        NoChase: The architecture is unknown, or the system refuses executable memory.
    """
    machine = machine or platform.machine()
    code = CODE.get(machine)
    if code is None:
        raise NoChase(f"no machine code for {machine}: a chase needs {' or '.join(sorted(CODE))}")
    try:
        file = os.memfd_create("chase")
        try:
            os.write(file, code)
            executable = mmap.mmap(file, len(code), flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_EXEC)
        finally:
            os.close(file)
    except OSError as refused:
        raise NoChase(f"the system refuses executable memory: {refused}") from refused
    return _Mapped(executable)


class _Mapped:
    """The machine code as a function; the memory stays mapped for as long as the function is there."""

    def __init__(self, executable: mmap.mmap) -> None:
        self._code = np.frombuffer(executable, dtype=np.uint8)
        self._call = ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint64)(self._code.ctypes.data)

    def __call__(self, address: int, steps: int) -> int:
        if steps < 1:
            raise ValueError(f"a chase of {steps} steps, expected 1 or more: the loop counts down to 0")
        return int(self._call(address, steps))


@dataclass(frozen=True, slots=True)
class Ring:
    """Places in memory, each of which holds the address of the next one; the last holds that of the first."""

    memory: Words
    order: Words
    """The places in the order in which a chase visits them, by number."""

    @classmethod
    def of(cls, order: Words) -> Ring:
        """Write a ring that visits the places in this order.

        The first places are written first. So the later ones have pushed them out of a cache that is smaller than
        the ring.

        Args:
            order: Each number from 0 on once.
        """
        memory = np.empty(len(order) * _WORDS, dtype=np.uint64)
        memory[order * np.uint64(_WORDS)] = np.roll(np.uint64(memory.ctypes.data) + order * np.uint64(LINE), -1)
        return cls(memory, order)

    def address(self, steps: int) -> int:
        """The address at which a chase is after so many steps from the first place."""
        return int(self.memory.ctypes.data) + LINE * int(self.order[steps % len(self.order)])


def random_order(places: int, *, seed: int = 1) -> Words:
    """The numbers below ``places`` in random order, which no prefetcher guesses."""
    return np.random.default_rng(seed).permutation(places).astype(np.uint64)
