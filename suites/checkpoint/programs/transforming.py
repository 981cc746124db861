"""Transformations of what a checkpoint's files hold, such as compression or encryption."""

from __future__ import annotations

import io
from typing import IO, Any, cast

from torch.distributed.checkpoint._extension import ExtensionRegistry, StreamTransformExtension


class _Writing(io.RawIOBase):
    """Keeps all, and writes it changed when it is closed."""

    def __init__(self, output: IO[bytes], extension: Counting) -> None:
        self._output, self._extension, self._held = output, extension, bytearray()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._held += memoryview(data).cast("B")
        return len(memoryview(data).cast("B"))

    def close(self) -> None:
        if not self.closed:
            self._output.write(self._extension.there(bytes(self._held)))
            super().close()
            self._output.close()


class _Reading(io.BytesIO):
    """Cannot be read in another order, as a decompressed stream."""

    def seekable(self) -> bool:
        return False


class Counting(StreamTransformExtension):
    """Adds its place and a number, which its descriptor brings to the reader, to each byte; and writes two more.

    torch 2.13 undoes several such transformations in the order in which it made them, so there is one.
    """

    def __init__(self, number: int) -> None:
        self.number = number

    @staticmethod
    def registry_name() -> str:
        """What descriptors call it."""
        return "suites.counting"

    @staticmethod
    def from_descriptor(version: str) -> Counting:
        """The extension that wrote."""
        return Counting(int(version))

    def get_descriptor(self) -> str:
        """Its name and number."""
        return f"{self.registry_name()}/{self.number}"

    def transform_to(self, output: IO[bytes]) -> IO[bytes]:
        """A stream that writes changed bytes."""
        return cast("IO[bytes]", _Writing(output, self))

    def transform_from(self, input: IO[bytes]) -> IO[bytes]:  # noqa: A002  # torch's name
        """A stream that reads what was written."""
        return _Reading(self.back(input.read(-1)))

    def there(self, data: bytes) -> bytes:
        """The bytes, each changed by its place."""
        return b"::" + bytes((byte + place + self.number) % 256 for place, byte in enumerate(data))

    def back(self, data: bytes) -> bytes:
        """The bytes without that."""
        assert data[:2] == b"::", "these bytes were not written by this extension"
        return bytes((byte - place - self.number) % 256 for place, byte in enumerate(data[2:]))


def registry() -> ExtensionRegistry:
    """Knows it."""
    known = ExtensionRegistry()
    known.register(Counting)
    return known
