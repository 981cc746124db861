"""Files that others may have a hand in: regular ones only, of bounded size, never by a planted link, replaced whole."""

import errno
import fcntl
import os
import secrets
import stat
from contextlib import suppress
from io import FileIO
from pathlib import Path

# The baselines of a thousand tests with twenty launches each have about 10 MiB; what is larger is no file of ours, and
# reading it would take the memory that the test session needs.
MOST_BYTES = 64 << 20

_CHUNK = 1 << 20
_KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


class UnfitFileError(OSError):
    """A file is there that must not be read or replaced."""


def read_bytes(path: Path) -> bytes:
    """The contents of a regular file, or of one that a link leads to.

    Raises:
        OSError: It is anything else, holds too much, or cannot be read.
    """
    with FileIO(open_regular(path, os.O_RDONLY, follow=True), "rb") as stream:
        return read_contents(stream)


def read_contents(stream: FileIO) -> bytes:
    """What an open file holds, from its beginning.

    Raises:
        OSError: It holds too much, or cannot be read.
    """
    _refuse_beyond_limit(os.fstat(stream.fileno()).st_size)
    raw = bytearray()
    while chunk := stream.read(_CHUNK):  # it may grow meanwhile, and a file in /proc says that it is empty
        raw += chunk
        _refuse_beyond_limit(len(raw))
    return bytes(raw)


def open_regular(path: Path, flags: int, *, follow: bool = False) -> int:
    """A descriptor of a regular file; waits for nobody at its other end.

    Args:
        path: The file.
        flags: Of ``os.open``; with O_CREAT a missing file is made.
        follow: Whether the path may be a link.

    Raises:
        OSError: It is a link, or no regular file, or cannot be opened.
    """
    link = 0 if follow else os.O_NOFOLLOW
    with suppress(FileNotFoundError):
        _refuse_irregular(os.stat(path, follow_symlinks=follow), links=not follow)  # to open a device may do something
    descriptor = os.open(path, flags | link | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    try:
        _refuse_irregular(os.fstat(descriptor))
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def lock(path: Path, flags: int) -> FileIO:
    """A regular file, open for reading and writing, that no other process has locked so; its end frees it.

    Args:
        path: The file. A link is refused: who plants one would have another file cut to nothing.
        flags: Of ``os.open``; with O_CREAT a missing file is made.

    Raises:
        BlockingIOError: Another process has locked it.
        OSError: As ``open_regular``, or a file system without locks.
    """
    while True:
        stream = FileIO(open_regular(path, flags), "r+b")
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Who ends removes the file. The lock of a file without a name would exclude nobody.
            if os.path.samestat(os.fstat(stream.fileno()), os.lstat(path)):
                return stream
        except FileNotFoundError:
            pass
        except OSError:
            stream.close()
            raise
        stream.close()


def replace(target: Path, text: str) -> None:
    """Replaces a regular file at once: a reader meets the old text or the new one, whatever happens to the writer.

    The new file has the mode of the old one, or else what the umask leaves.

    Raises:
        OSError: It cannot be replaced; the old one is left as it is.
    """
    raw = text.encode()
    _refuse_beyond_limit(len(raw))
    mode = None
    with suppress(FileNotFoundError):
        found = os.lstat(target)
        _refuse_irregular(found, links=True)
        mode = stat.S_IMODE(found.st_mode)
    # In the same folder, so that the replacement is atomic. Nobody can plant a name that is drawn here, and O_EXCL
    # follows no link; tempfile would give it a mode that the umask has no part in.
    temporary = target.with_name(f"{_make_prefix(target)}{secrets.token_hex(8)}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            if mode is not None:
                os.fchmod(descriptor, mode)
            stream.write(raw)
            stream.flush()
            os.fsync(descriptor)
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


def remove_leftovers(target: Path) -> None:
    """Removes what killed writers of a file left beside it; only who holds its lock knows that none is in use."""
    with os.scandir(target.parent) as entries:
        left = [
            entry.path for entry in entries if entry.name.startswith(_make_prefix(target)) and _is_temporary(entry.name)
        ]
    for path in left:
        with suppress(OSError):
            os.unlink(path)


def _make_prefix(target: Path) -> str:
    return f".{target.name[:200]}."  # no name may be longer than 255 bytes


def _is_temporary(name: str) -> bool:
    return name.endswith(".tmp")


def _refuse_irregular(found: os.stat_result, *, links: bool = False) -> None:
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if links and stat.S_ISLNK(found.st_mode):
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    if not stat.S_ISREG(found.st_mode):
        kind = _KINDS.get(stat.S_IFMT(found.st_mode), "no file")
        raise UnfitFileError(f"{kind}, expected a regular file")


def _refuse_beyond_limit(size: int) -> None:
    if size > MOST_BYTES:
        raise UnfitFileError(f"holds {size} bytes, expected at most {MOST_BYTES} ({MOST_BYTES >> 20} MiB)")
