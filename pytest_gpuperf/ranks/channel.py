"""How controller and ranks speak: messages that arrive whole or not at all, whatever their size.

What is small is one packet. What is large lies in a file in memory, of which the packet carries the descriptor. So
nobody waits in the middle of a message for a process that was stopped there, nor for one that does not read.
"""

from __future__ import annotations

import contextlib
import errno
import os
import pickle
import socket
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from types import TracebackType
from typing import Any, Self

PACKET = 1 << 16  # bytes of a packet at most; the kernel's usual buffer of a socket holds three
LARGE = 1 << 16  # bytes of a tensor, say, from which on it is not copied into the pickle
_IN_A_FILE = b"file"  # shorter than any message
_NUMBER = struct.Struct("=Q")
Buffer = bytes | bytearray


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Parcel:
    """A pickled object on its way."""

    stream: Buffer = b""
    buffers: Sequence[Buffer | pickle.PickleBuffer] = ()
    """What the pickle refers to and does not hold, in order."""


EMPTY = Parcel()


class Letter:
    """A message and its enclosure, ready for any number of receivers. Frees its memory as it is closed."""

    def __init__(self, message: object, parcel: Parcel = EMPTY) -> None:
        """Lays it out.

        Args:
            message: any object that the standard pickle takes.
            parcel: what travels with it, and is not read.

        Raises:
            OSError: there is no memory, or no file descriptor, for a large one.
        """
        parts = [_view_bytes(part) for part in (pickle.dumps(message), parcel.stream, *parcel.buffers)]
        sizes = b"".join(_NUMBER.pack(number) for number in (len(parts), *(part.nbytes for part in parts)))
        size = len(sizes) + sum(part.nbytes for part in parts)
        self.file: int | None = None
        """Descriptor of the file that holds it; None if ``packet`` does."""
        self.packet = b"".join([sizes, *parts]) if size <= PACKET else _IN_A_FILE
        """What is sent."""
        if size > PACKET:
            try:
                self.file = _make_file([memoryview(sizes), *parts])
            except OSError as error:
                error.add_note(f"raised as {size} bytes were laid down in memory, on their way to another process")
                raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Frees the memory once all receivers have read it."""
        if self.file is not None:
            os.close(self.file)
            self.file = None


class Channel:
    """One end of a connection between two processes of a host."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end

    @classmethod
    def pair(cls) -> tuple[Self, Self]:
        """Two ends, each other's peers."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return cls(ours), cls(theirs)

    @classmethod
    def of(cls, fd: int) -> Self:
        """The end that a file descriptor is of."""
        return cls(socket.socket(fileno=fd))

    def fileno(self) -> int:
        """Its file descriptor; -1 once it is closed."""
        return self._end.fileno()

    def close(self) -> None:
        """Closes this end."""
        self._end.close()

    def hang_up(self) -> None:
        """Closes this end, and has the peer see the end though a forked child of this process holds it too."""
        with contextlib.suppress(OSError):  # the peer has gone, or this end was closed
            self._end.shutdown(socket.SHUT_RDWR)
        self._end.close()

    def send(self, message: object, parcel: Parcel = EMPTY) -> None:
        """Sends a message, with its enclosure.

        Raises:
            OSError: the peer is gone; or as ``Letter``.
        """
        with Letter(message, parcel) as letter:
            self.post(letter)

    def post(self, letter: Letter) -> None:
        """Sends what was made ready before.

        Raises:
            OSError: the peer is gone.
        """
        if letter.file is None:
            self._end.send(letter.packet)
        else:
            socket.send_fds(self._end, [letter.packet], [letter.file])

    def poll(self, timeout: float) -> bool:
        """Whether there is something to receive within so many seconds."""
        return bool(wait([self._end], timeout))

    def receive(self) -> tuple[Any, Parcel]:
        """The next message, with its enclosure.

        Raises:
            EOFError: the peer is gone.
            ConnectionResetError: the same, and it had not read all that it was sent.
            OSError: there is no file descriptor left for a large one.
        """
        packet, files, _, _ = socket.recv_fds(self._end, PACKET, 1, socket.MSG_CMSG_CLOEXEC)
        if not packet:
            raise EOFError
        if packet == _IN_A_FILE and not files:  # the kernel drops what a process has no descriptor for
            raise OSError(errno.EMFILE, f"a large message was lost: {os.strerror(errno.EMFILE)}")
        message, stream, *buffers = _split_file(files[0]) if files else _split_packet(packet)
        return pickle.loads(message), Parcel(stream, buffers)


def _view_bytes(part: Buffer | pickle.PickleBuffer) -> memoryview:
    return part.raw() if isinstance(part, pickle.PickleBuffer) else memoryview(part)


def _make_file(parts: Sequence[memoryview]) -> int:
    fd = os.memfd_create("message")
    try:
        for part in parts:
            while part.nbytes:
                part = part[os.write(fd, part) :]  # which takes 2 GiB at most
    except BaseException:
        os.close(fd)
        raise
    return fd


def _split_packet(packet: bytes) -> list[Buffer]:
    return _split(lambda size, at: bytearray(packet[at : at + size]))


def _split_file(fd: int) -> list[Buffer]:
    def read(size: int, at: int) -> Buffer:
        data = bytearray(size)
        part = memoryview(data)
        while part.nbytes:
            done = os.preadv(fd, [part], at)  # not read(): all receivers have one file position
            if done == 0:
                raise EOFError
            part, at = part[done:], at + done
        return data

    try:
        return _split(read)
    finally:
        os.close(fd)


def _split(read: Callable[[int, int], Buffer]) -> list[Buffer]:
    (count,) = _NUMBER.unpack(read(_NUMBER.size, 0))
    at = _NUMBER.size * (count + 1)
    parts = []
    for (size,) in _NUMBER.iter_unpack(read(_NUMBER.size * count, _NUMBER.size)):
        parts.append(read(size, at))
        at += size
    return parts
