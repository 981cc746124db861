"""Leases of a machine's GPUs and cores, among processes that know nothing of each other."""

import json
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from pytest_gpuperf.leases import claimant
from pytest_gpuperf.leases.claimant import Claimant
from pytest_gpuperf.leases.folder import Folder, LeaseError
from pytest_gpuperf.leases.lease import Lease
from pytest_gpuperf.leases.lock_file import LockFile
from pytest_gpuperf.leases.memory import RETURN_SECONDS, UsedMemory, await_return, has_memory
from pytest_gpuperf.leases.queue import Queue, Ticket
from pytest_gpuperf.leases.residents import Residents

SUFFIX = ".lock"
LISTED = 8  # names in a message; a machine has up to 8 GPUs, and hundreds of cores
NOTICE_SECONDS = 30.0  # between two words to somebody who waits

# flock knows no timeout, and the signal that could end its waiting is the user's, so the lock is tried again and again:
# soon after the beginning, for tests are short, and later seldom, for runs are long. A hand-over is noticed late by a
# twentieth of the time waited at most. Who comes first does not depend on it: that is the queue's, and he tries most.
SHORTEST_PAUSE = 0.01
LONGEST_PAUSE = 0.1
LONGEST_PAUSE_OF_FIRST = 0.02
PAUSE_SHARE = 0.05


@dataclass(frozen=True, slots=True)
class _Request:
    candidates: tuple[str, ...]
    count: int
    prefer: frozenset[str]
    warm: tuple[frozenset[str], ...]
    holder: str
    alone: bool

    def choices(self) -> Iterator[list[str]]:
        """Names to choose from, a better choice first."""
        for names in self.warm:
            if len(names) == self.count and names <= set(self.candidates):
                yield [name for name in self.candidates if name in names]
        yield sorted(self.candidates, key=lambda name: name not in self.prefer)  # stable: else in the given order

    def words(self) -> str:
        return f"{self.count} of {_listed(self.candidates)} for {self.holder!r}"


class Leases:
    """Gives out resources, each to one owner at a time on this machine.

    A resource is named by a string: a GPU by its UUID, a core by "core-<n>". Who asks for all of them is alone.
    """

    def __init__(self, folder: Path, used: UsedMemory | None = None) -> None:
        """Keeps the folder in mind; it is made when the first lease is asked for.

        Args:
            folder: Lock files, shared by all users of the machine.
            used: Bytes in use on a GPU; None where no memory is to be waited for.
        """
        self._folder = Folder(folder)
        self._queue = Queue(self._folder)
        self._residents = Residents(self._folder)
        self._used = used

    def acquire(
        self,
        candidates: Sequence[str],
        count: int,
        *,
        prefer: Sequence[str] = (),
        warm: Sequence[Collection[str]] = (),
        alone: bool = False,
        holder: str,
        timeout: float,
        on_wait: Callable[[str], None] | None = None,
        quiet: float = 0.0,
        meanwhile: Callable[[], None] | None = None,
    ) -> Lease:
        """Leases some of the candidates, all at once or none, in the order in which requests came.

        Args:
            candidates: The resources to choose from.
            count: How many of them.
            prefer: Those to take before others, if they are free.
            warm: Whole sets to take before all others; the first one that is free.
            alone: Whether to wait until no other process stays on them either.
            holder: What for, in words for others: a test's node id.
            timeout: Seconds to wait for owners; 0 tries once. Waiting for a dead owner's memory comes on top, 10 s at
                most.
            on_wait: Told who holds what since when, as waiting begins and every 30 s.
            quiet: Seconds of waiting that are not worth telling.
            meanwhile: Called again and again while waiting.

        Raises:
            LeaseError: At the timeout, and where the folder cannot be used.
            ValueError: For a count that the candidates cannot give, and for names that are no file names.
            HardwareError: Where a GPU does not tell its memory.
        """
        warm_sets = tuple(frozenset(names) for names in warm)
        request = _Request(tuple(candidates), count, frozenset(prefer), warm_sets, holder, alone)
        _require_possible(request)
        self._folder.make()
        files = self._take(request, None)
        if files is None:
            files = self._wait(request, timeout, on_wait, quiet, meanwhile)
        with ExitStack() as failing:
            for file in files.values():
                failing.callback(file.close)
            lease = self._hand_over(request, files)
            failing.pop_all()
        return lease

    def stay(self, resources: Collection[str], holder: str) -> None:
        """Says that processes of this one's stay on these after the release, and on no others any more.

        Args:
            resources: Leased now, or where they stay already.
            holder: Whose they are, in words for others.

        Raises:
            LeaseError: Where it cannot be written.
        """
        self._residents.stay(resources, holder)

    @property
    def staying(self) -> frozenset[str]:
        """The resources on which processes of this one's stay."""
        return self._residents.resources

    def wanted_alone(self, resources: Collection[str]) -> bool:
        """Whether somebody waits to be alone on one of these.

        Raises:
            LeaseError: Where the folder cannot be read.
        """
        return bool(resources) and self._queue.wanted_alone(resources)

    def _take(self, request: _Request, own: Ticket | None) -> dict[str, LockFile] | None:
        """Locks what is free, if it is enough and nobody was there before."""
        if self._queue.ahead(request.candidates, own) is not None:
            return None
        for names in request.choices():
            taken = self._lock(names, request.count)
            if taken is None:
                continue
            # Looked at under the locks: now nobody can come to stay.
            if request.alone and self._residents.others(taken):
                for file in taken.values():
                    file.close()
                return None
            return {name: taken[name] for name in request.candidates if name in taken}
        return None

    def _lock(self, names: Sequence[str], count: int) -> dict[str, LockFile] | None:
        taken: dict[str, LockFile] = {}
        spare = len(names) - count
        with ExitStack() as too_few:
            for name in names:
                file = self._folder.lock(name + SUFFIX)
                if file is None:
                    spare -= 1
                    if spare < 0:
                        return None
                    continue
                too_few.callback(file.close)
                taken[name] = file
                if len(taken) == count:
                    break
            too_few.pop_all()
        return taken

    def _wait(
        self,
        request: _Request,
        timeout: float,
        on_wait: Callable[[str], None] | None,
        quiet: float,
        meanwhile: Callable[[], None] | None,
    ) -> dict[str, LockFile]:
        began = time.monotonic()
        notice = began + quiet
        with self._queue.ticket(request.holder, request.candidates, request.count, alone=request.alone) as own:
            while True:
                files = self._take(request, own)
                if files is not None:
                    return files
                if meanwhile is not None:
                    meanwhile()
                now = time.monotonic()
                left = began + timeout - now
                if left <= 0:
                    raise LeaseError(
                        f"wanted {request.words()}, got none within {timeout:g} s; {self._in_the_way(request, own)}: "
                        "allow more time (gpuperf_lease_timeout), let fewer processes run at once, name other GPUs in "
                        "CUDA_VISIBLE_DEVICES if it is GPUs that are wanted, or end a process that hangs"
                    )
                if on_wait is not None and now >= notice:
                    on_wait(f"waiting for {request.words()}; {self._in_the_way(request, own)}")
                    notice = now + NOTICE_SECONDS
                first = self._queue.ahead(request.candidates, own) is None
                longest = LONGEST_PAUSE_OF_FIRST if first else LONGEST_PAUSE
                time.sleep(min(max(PAUSE_SHARE * (now - began), SHORTEST_PAUSE), longest, left))

    def _in_the_way(self, request: _Request, own: Ticket) -> str:
        now = time.time()
        held: dict[str, list[str]] = {}
        for name in request.candidates:
            line = self._folder.look(name + SUFFIX)
            if line is not None:
                owner = claimant.read(line)
                held.setdefault("somebody unknown" if owner is None else owner.words(now), []).append(name)
        what = [f"{_listed(names)} held by {words}" for words, names in held.items()]
        earlier = self._queue.ahead(request.candidates, own)
        if earlier is not None:
            what.append(
                f"{earlier.count} of {_listed(sorted(earlier.candidates))} to go first to {earlier.who.words(now)}"
            )
        if request.alone:
            what += [
                f"{_listed(sorted(resident.resources))} with idle ranks of {resident.who.words(now)}"
                for resident in self._residents.others(request.candidates)
            ]
        return "; ".join(what) or "all free by now"

    def _hand_over(self, request: _Request, files: dict[str, LockFile]) -> Lease:
        """Writes the new owner into the files, and waits for the memory of a dead one."""
        left_behind = {name: _left_behind(file) for name, file in files.items()}
        owner = Claimant.of_this_process(request.holder)
        # The dead one's measure first, and ours afterwards: if we die while we wait, the next one waits for the same.
        self._write(files, owner, left_behind)
        if self._used is None:
            return Lease(files, {}, None, ())
        due = {name: used for name, used in left_behind.items() if used is not None and has_memory(name)}
        unreturned = await_return(due, self._used, RETURN_SECONDS)
        used_now = {name: self._used(name) for name in files if has_memory(name)}
        # The least of both, so that slack does not add up over deaths; what is not back by now counts as another's.
        before = {
            name: used if name in unreturned else min(used, due.get(name, used)) for name, used in used_now.items()
        }
        self._write(files, owner, before)
        return Lease(files, before, self._used, unreturned)

    def _write(self, files: Mapping[str, LockFile], owner: Claimant, used: Mapping[str, int | None]) -> None:
        for name, file in files.items():
            with self._folder.failures(name + SUFFIX):
                file.write(json.dumps(replace(owner, used_bytes=used.get(name)).to_json()))


def _listed(names: Sequence[str]) -> str:
    if len(names) > LISTED:
        return f"{len(names)} from {names[0]} to {names[-1]}"
    return ", ".join(names)


def _left_behind(file: LockFile) -> int | None:
    dead = claimant.read(file.read())
    return None if dead is None else dead.used_bytes


def _require_possible(request: _Request) -> None:
    candidates = request.candidates
    if not 1 <= request.count <= len(candidates):
        raise ValueError(f"count: got {request.count}, expected 1 to {len(candidates)}, the number of candidates")
    if len(set(candidates)) < len(candidates):
        raise ValueError(f"candidates: got {candidates!r}, expected each once")
    odd = [name for name in candidates if not claimant.is_name(name)]
    if odd:
        raise ValueError(f"candidates: got {odd!r}, expected names of letters, digits, '-', '_' and '.'")
