"""The folder of lock files, shared by all users of the machine."""

import errno
import os
import secrets
import stat
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pytest_gpuperf.leases.claimant import show
from pytest_gpuperf.leases.lock_file import LockFile

SHARED_FOLDER = 0o1777  # anybody may add files, and remove none of another's
SHARED_FILE = 0o666  # flock asks for no right, but the owner's record has to be written

# O_CLOEXEC, though Python sets it: programs that the owner starts must not keep its lock alive. O_NOFOLLOW: a link in a
# folder that everybody writes to could lead to a file of the victim's. O_NONBLOCK: neither may a named pipe hang us.
OPENING = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class LeaseError(Exception):
    """Resources of the machine cannot be leased; the message says what was wanted, what is in the way, and the cure."""


class _NotPlainError(LeaseError):
    """A pipe, device or socket has a lock file's name."""


class Folder:
    """Opens, locks and lists the files of one folder; its failures are LeaseErrors."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._opened: weakref.WeakSet[LockFile] = weakref.WeakSet()
        # O_CLOEXEC acts at exec alone. A forked child that lives on as Python would share our locks: keep them when we
        # die, and free them under us when it cleans up what it takes for its own.
        # The hook lives as long as the process, and keeps a set of weak references alive.
        opened = self._opened
        os.register_at_fork(after_in_child=lambda: _abandon(opened))

    def make(self) -> None:
        """Makes the folder if there is none.

        Raises:
            LeaseError: Where there can be no such folder, it is a link, not writable for this user, or another user's
                without the sticky bit.
        """
        with self.failures():
            try:
                self.path.mkdir(parents=True)
            except FileExistsError:
                pass
            else:
                # mkdir heeds the umask. Only what we made is opened to all: a folder that was given to us may be meant
                # for one user. Another user who comes between these two calls is refused, once in a machine's life.
                self.path.chmod(SHARED_FOLDER)
            found = os.lstat(self.path)
        mode = found.st_mode
        if not stat.S_ISDIR(mode):
            got = "a symbolic link" if stat.S_ISLNK(mode) else "a file"
            raise LeaseError(
                f"the folder of leases {str(self.path)!r}: got {got}, expected a folder: remove it, or choose another "
                "folder"
            )
        if not os.access(self.path, os.R_OK | os.W_OK | os.X_OK):
            raise LeaseError(
                f"the folder of leases {str(self.path)!r}: got mode {stat.S_IMODE(mode):o} and no right to write, "
                f"expected {SHARED_FOLDER:o}: let its owner run chmod {SHARED_FOLDER:o}, or choose another folder"
            )
        if found.st_uid != os.geteuid() and not mode & stat.S_ISVTX:
            raise LeaseError(
                f"the folder of leases {str(self.path)!r}: got mode {stat.S_IMODE(mode):o} of user {found.st_uid}, in "
                "which users can remove each other's locks, expected the sticky bit: let its owner run chmod "
                f"{SHARED_FOLDER:o}, or choose another folder (gpuperf_leases)"
            )

    def lock(self, name: str) -> LockFile | None:
        """Locks a file, made where it is missing; None where another holds it.

        Raises:
            LeaseError: Where the file cannot be used.
        """
        while True:
            file = self._open_or_make(name)
            try:
                if not file.try_lock():
                    file.close()
                    return None
                # A cleaner of /tmp may remove a file while it is opened; its lock would exclude nobody.
                if file.is_at(self.path / name):
                    return file
            except BaseException:
                file.close()
                raise
            file.close()

    def look(self, name: str) -> str | None:
        """What the owner of a file wrote; None where nobody holds it, or it is none of ours.

        Raises:
            LeaseError: Where files cannot be opened at all, for want of descriptors for example.
        """
        file = self._open_to_look(name)
        if file is None:
            return None
        # Holding the lock for this moment can make another's try fail, who tries again; two who look do not meet.
        try:
            return None if file.try_lock(shared=True) else file.read()
        finally:
            file.close()

    def is_shared(self, name: str) -> bool:
        """Whether somebody holds the file locked as shared. Processes of this package do so only while they look.

        Raises:
            LeaseError: Where files cannot be opened at all.
        """
        file = self._open_to_look(name)
        if file is None:
            return False
        try:
            return not file.try_lock() and file.try_lock(shared=True)
        finally:
            file.close()

    def list_lockers(self, name: str) -> list[int]:
        """The processes that hold the file locked, by the kernel's list; without those of other containers."""
        try:
            inode = os.stat(self.path / name, follow_symlinks=False).st_ino
            lines = Path("/proc/locks").read_text().splitlines()
        except OSError:
            return []
        # "1: FLOCK  ADVISORY  READ 4711 fd:01:131 0 EOF"; a waiter has "->" behind its number.
        rows = [row for line in lines if len(row := line.split()) >= 6 and row[1] == "FLOCK"]
        return sorted({int(row[4]) for row in rows if row[5].rpartition(":")[2] == str(inode) and int(row[4]) > 0})

    def post(self, name: str, line: str) -> LockFile:
        """Makes a new file, which is locked and written before it bears its name.

        Raises:
            LeaseError: Where the file cannot be made.
        """
        with self.failures(name), self._make_file(0o644) as (temporary, file):
            file.try_lock()
            file.write(line)
            os.rename(temporary, self.path / name)
        return file

    def names(self, suffix: str) -> list[str]:
        """The names with an ending, sorted; none without a folder.

        Raises:
            LeaseError: Where the folder cannot be read.
        """
        with self.failures():
            try:
                return sorted(name for name in os.listdir(self.path) if name.endswith(suffix))
            except FileNotFoundError:
                return []

    def remove(self, name: str) -> bool:
        """Removes a file; whether it is gone. It stays where it is another user's."""
        try:
            os.unlink(self.path / name)
        except FileNotFoundError:
            return True
        except OSError:
            return False
        return True

    @contextmanager
    def failures(self, name: str | None = None) -> Iterator[None]:
        """Turns what the system refuses, inside, into LeaseErrors.

        Args:
            name: The file in question; None for the folder.
        """
        try:
            yield
        except OSError as error:
            what = f"the folder of leases {str(self.path)!r}"
            if name is not None:
                what = f"the lease file {show(str(self.path / name))}"
            raise LeaseError(
                f"{what}: got {show(error)}, expected to read and write it, as every user of this machine may (a "
                f"folder of mode {SHARED_FOLDER:o}, files of mode {SHARED_FILE:o}): set its mode, remove it, or choose "
                "another folder"
            ) from error

    def _open_to_look(self, name: str) -> LockFile | None:
        """The file; None if it is none of ours."""
        with self.failures(name):
            try:
                return self._open(name, os.O_RDONLY)
            except (FileNotFoundError, PermissionError, _NotPlainError):
                return None
            except OSError as error:
                if error.errno == errno.ELOOP:
                    return None
                raise

    def _open_or_make(self, name: str) -> LockFile:
        while True:
            with self.failures(name):
                # Without O_CREAT: under fs.protected_regular the kernel refuses it, in a sticky folder, for an
                # existing file of another user.
                try:
                    return self._open(name, os.O_RDWR)
                except FileNotFoundError:
                    pass
                # Linked to its name when it has its mode, so that no other user meets one that only we may open.
                with self._make_file(SHARED_FILE) as (temporary, file):
                    try:
                        os.link(temporary, self.path / name)
                    except FileExistsError:
                        file.close()
                        continue
                return file

    @contextmanager
    def _make_file(self, mode: int) -> Iterator[tuple[Path, LockFile]]:
        """A new file under a passing name."""
        temporary = self.path / f".{os.getpid()}-{secrets.token_hex(8)}.new"
        file = self._keep(os.open(temporary, OPENING | os.O_RDWR | os.O_CREAT | os.O_EXCL, mode))
        try:
            os.fchmod(file.descriptor, mode)  # whatever the umask
            yield temporary, file
        except BaseException:
            file.close()
            raise
        finally:
            temporary.unlink(missing_ok=True)

    def _open(self, name: str, access: int) -> LockFile:
        file = self._keep(os.open(self.path / name, OPENING | access))
        found = os.fstat(file.descriptor)
        # Another user can plant a second name of a file that only we may write, where the kernel lets him link it
        # (fs.protected_hardlinks). One of ours has two names for a moment, and everybody may write it.
        planted = access != os.O_RDONLY and found.st_nlink > 1 and not found.st_mode & stat.S_IWOTH
        if planted or not stat.S_ISREG(found.st_mode):
            file.close()
            got = "another name of a file that is not shared" if planted else "a special file"
            raise _NotPlainError(
                f"the lease file {show(str(self.path / name))}: got {got}, expected a plain one: remove it"
            )
        return file

    def _keep(self, descriptor: int) -> LockFile:
        file = LockFile(descriptor)
        self._opened.add(file)
        return file


def _abandon(files: Iterable[LockFile]) -> None:
    for file in files:
        file.abandon()
