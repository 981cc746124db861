"""Leases of a machine's GPUs and cores, among processes that know nothing of each other."""

import json
import secrets
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from pytest_gpuperf.leases import claimant
from pytest_gpuperf.leases.claimant import Claimant
from pytest_gpuperf.leases.folder import Folder, LeaseError
from pytest_gpuperf.leases.lease import Grant, Lease, SharedLease
from pytest_gpuperf.leases.lock_file import LockFile
from pytest_gpuperf.leases.memory import RETURN_SECONDS, UsedMemory, await_return, has_memory
from pytest_gpuperf.leases.queue import Queue, Ticket
from pytest_gpuperf.leases.residents import Residents

SUFFIX = ".lock"
LISTED = 8  # names in a message; a machine has up to 8 GPUs, and hundreds of cores
NOTICE_SECONDS = 30.0  # between two words to somebody who waits
SHARED_LOOKS = 3  # that find a lock shared: processes of this package share one for microseconds, while they look
SHARED_SECONDS = 1.0  # between two of these looks

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
    holder: str
    alone: bool
    warm: tuple[frozenset[str], ...] = ()

    def choice(self, names: Sequence[str], others: Mapping[str, int]) -> frozenset[str]:
        """The best of the resources that can be shared.

        Args:
            names: Those to choose from, as many as are wanted or more.
            others: How many other processes are on each.
        """
        best = frozenset(sorted(names, key=lambda name: others[name])[: self.count])  # stable: else in the given order
        crowd = sum(others[name] for name in best)
        for warm in self.warm:
            if len(warm) == self.count and warm <= set(names) and sum(others[name] for name in warm) == crowd:
                return warm
        return best

    def words(self) -> str:
        return f"{self.count} of {_list(self.candidates)} for {self.holder!r}"


class Leases:
    """Gives out resources of this machine: to one owner alone, or to tests of one run that share them.

    A resource is named by a string: a GPU by its UUID, a core by "core-<n>".
    """

    def __init__(self, folder: Path, used: UsedMemory | None = None, run: str | None = None) -> None:
        """Keeps the folder in mind; it is made when the first lease is asked for.

        Args:
            folder: Lock files, shared by all users of the machine.
            used: Bytes in use on a GPU; None where no memory is to be waited for.
            run: The name of the run with whose other processes this one shares; None where there are none.
        """
        self._folder = Folder(folder)
        self._queue = Queue(self._folder)
        self._run = secrets.token_hex(16) if run is None else run
        self._residents = Residents(self._folder, self._run)
        self._used = used

    def acquire(
        self,
        candidates: Sequence[str],
        count: int,
        *,
        holder: str,
        timeout: float,
        on_wait: Callable[[str], None] | None = None,
        quiet: float = 0.0,
        meanwhile: Callable[[], None] | None = None,
    ) -> Lease:
        """Leases some of the candidates alone, all at once or none, in the order in which requests came.

        Args:
            candidates: The resources to choose from.
            count: How many of them.
            holder: What for, in words for others: a test's node id.
            timeout: Seconds to wait for others; 0 tries once. Waiting for the memory of ranks that have ended comes on
                top, 10 s at most.
            on_wait: Told who holds what since when, as waiting begins and every 30 s.
            quiet: Seconds of waiting that are not worth telling.
            meanwhile: Called again and again while waiting.

        Raises:
            LeaseError: At the timeout, and where the folder cannot be used.
            ValueError: For a count that the candidates cannot give, and for names that are no file names.
            HardwareError: Where a GPU does not tell its memory.
        """
        request = _Request(tuple(candidates), count, holder, True)
        files = self._obtain(request, timeout, on_wait, quiet, meanwhile)
        with ExitStack() as failing:
            for file in files.values():
                failing.callback(file.close)
            before, unreturned = self._hand_over(holder, files)
            failing.pop_all()
        return Lease(files, before, self._used, unreturned)

    def share(
        self,
        candidates: Sequence[str],
        count: int,
        *,
        warm: Sequence[Collection[str]] = (),
        holder: str,
        timeout: float,
        on_wait: Callable[[str], None] | None = None,
        quiet: float = 0.0,
        meanwhile: Callable[[], None] | None = None,
    ) -> SharedLease:
        """Gives some of the candidates to a test, beside tests of other processes of the same run.

        It takes those on which the fewest other processes are. One process has one share at a time.

        Args:
            candidates: The GPUs to choose from.
            count: How many of them.
            warm: Whole sets to take before others on which as many processes are; the first one that can be had.
            holder: What for, in words for others: a test's node id.
            timeout: Seconds to wait for others; 0 tries once. Waiting for the memory of ranks that have ended comes on
                top, 10 s at most.
            on_wait: Told who holds what since when, as waiting begins and every 30 s.
            quiet: Seconds of waiting that are not worth telling.
            meanwhile: Called again and again while waiting.

        Raises:
            LeaseError: At the timeout, and where the folder cannot be used.
            ValueError: For a count that the candidates cannot give, and for names that are no file names.
            HardwareError: Where a GPU does not tell its memory.
        """
        request = _Request(tuple(candidates), count, holder, False, warm=tuple(frozenset(names) for names in warm))
        files = self._obtain(request, timeout, on_wait, quiet, meanwhile)
        with ExitStack() as unlocking:  # locked until the notice is there
            for file in files.values():
                unlocking.callback(file.close)
            there = self._residents.resources.union(*(other.resources for other in self._residents.others(files)))
            # The first on a GPU does what an owner does. Later ones find memory in use for good reason.
            first = {name: file for name, file in files.items() if name not in there}
            before, unreturned = self._hand_over(holder, first)
            if self._used is not None:
                noted = {name: _read_left_behind(file) for name, file in files.items() if name in there}
                before |= {name: used for name, used in noted.items() if used is not None}
            self._residents.begin(files, holder)
        return SharedLease(
            tuple(files),
            before,
            self._used,
            unreturned,
            others=lambda: self._find_occupied(files),
            end=lambda: self._residents.end(holder),
        )

    def stay(self, resources: Collection[str], holder: str) -> None:
        """Says that no test of this process's runs on a GPU any more, and on which ones its idle ranks stay.

        Args:
            resources: Given to it now, or where idle ranks stay already.
            holder: Whose they are, in words for others.

        Raises:
            LeaseError: Where it cannot be written.
        """
        self._residents.stay(resources, holder)

    def give_back(
        self, grant: Grant | None, staying: Collection[str], holder: str, *, await_memory: bool
    ) -> tuple[str, ...]:
        """Ends a grant, and says on which GPUs idle ranks stay.

        Args:
            grant: None if nothing is held.
            staying: The GPUs on which idle ranks stay.
            holder: Whose they are, in words for others.
            await_memory: Whether ranks on the other GPUs may have ended: their memory takes a moment to come back.

        Returns:
            The GPUs whose memory did not come back.
        """
        with ExitStack() as releasing:
            if grant is not None:
                releasing.enter_context(grant)
            # Before the release: nobody else is to come between, and find nobody who stays.
            releasing.callback(self.stay, staying, holder)
            return grant.await_memory(staying) if grant is not None and await_memory else ()

    @property
    def staying(self) -> frozenset[str]:
        """The resources on which processes of this one's are, idle or not."""
        return self._residents.resources

    def is_wanted_alone(self, resources: Collection[str]) -> bool:
        """Whether somebody waits to be alone on one of these.

        Raises:
            LeaseError: Where the folder cannot be read.
        """
        return bool(resources) and self._queue.is_wanted_alone(resources)

    def _find_occupied(self, resources: Collection[str]) -> frozenset[str]:
        return frozenset[str]().union(*(other.resources for other in self._residents.others(resources)))

    def _obtain(
        self,
        request: _Request,
        timeout: float,
        on_wait: Callable[[str], None] | None,
        quiet: float,
        meanwhile: Callable[[], None] | None,
    ) -> dict[str, LockFile]:
        """The locked files of what is given, in the order of the candidates."""
        _require_possible(request)
        self._folder.make()
        files = self._take(request, None)
        return self._wait(request, timeout, on_wait, quiet, meanwhile) if files is None else files

    def _take(self, request: _Request, own: Ticket | None) -> dict[str, LockFile] | None:
        """Locks what can be had, if it is enough and nobody was there before."""
        if self._queue.ahead(request.candidates, own) is not None:
            return None
        with ExitStack() as unlocking:
            if request.alone:
                files = self._lock(request.candidates, request.count, request.count, unlocking)
                # Looked at under the locks: now nobody can come to stay.
                if files is None or self._residents.others(files):
                    return None
                chosen = frozenset(files)
            else:
                # The first time all have to be locked: one that another process chooses from at this moment is soon
                # back, and ranks that are started elsewhere meanwhile would take seconds.
                every = len(request.candidates)
                files = self._lock(request.candidates, every if own is None else request.count, every, unlocking)
                if files is None:
                    return None
                others = self._residents.others(files)
                barred = frozenset[str]().union(*(other.running for other in others if other.run != self._run))
                names = [name for name in files if name not in barred]
                if len(names) < request.count:
                    return None
                there = {name: sum(name in other.resources for other in others) for name in names}
                chosen = request.choice(names, there)
            unlocking.pop_all()
        for name in files.keys() - chosen:
            files[name].close()
        return {name: files[name] for name in request.candidates if name in chosen}

    def _lock(self, names: Sequence[str], least: int, most: int, unlocking: ExitStack) -> dict[str, LockFile] | None:
        """Locks as many as can be had up to the most; None with less than the least."""
        taken: dict[str, LockFile] = {}
        spare = len(names) - least
        for name in names:
            file = self._folder.lock(name + SUFFIX)
            if file is None:
                spare -= 1
                if spare < 0:
                    return None
                continue
            unlocking.callback(file.close)
            taken[name] = file
            if len(taken) == most:
                break
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
        notice, look = began + quiet, began + SHARED_SECONDS
        shared: dict[str, int] = {}
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
                        f"wanted {request.words()}, got none within {timeout:g} s; "
                        f"{self._describe_obstacles(request, own)}: "
                        "allow more time (gpuperf_lease_timeout), let fewer processes run at once, name other GPUs in "
                        "CUDA_VISIBLE_DEVICES if it is GPUs that are wanted, or end a process that hangs"
                    )
                if now >= look:
                    look = now + SHARED_SECONDS
                    shared = {name: shared.get(name, 0) + 1 for name in self._list_shared(request.candidates)}
                    foreign = [name for name, looks in shared.items() if looks >= SHARED_LOOKS]
                    if len(request.candidates) - len(foreign) < request.count:
                        raise LeaseError(
                            f"wanted {request.words()}; {self._say_shared(foreign)}, which no process of "
                            "pytest-gpuperf does, expected locks of its own processes only: end those processes, or "
                            "choose another folder (gpuperf_leases)"
                        )
                if on_wait is not None and now >= notice:
                    on_wait(f"waiting for {request.words()}; {self._describe_obstacles(request, own)}")
                    notice = now + NOTICE_SECONDS
                first = self._queue.ahead(request.candidates, own) is None
                longest = LONGEST_PAUSE_OF_FIRST if first else LONGEST_PAUSE
                time.sleep(min(max(PAUSE_SHARE * (now - began), SHORTEST_PAUSE), longest, left))

    def _list_shared(self, names: Sequence[str]) -> list[str]:
        return [name for name in names if self._folder.is_shared(name + SUFFIX)]

    def _say_shared(self, names: Sequence[str]) -> str:
        files = [claimant.show(str(self._folder.path / (name + SUFFIX))) for name in names[:LISTED]]
        lockers = sorted({pid for name in names for pid in self._folder.list_lockers(name + SUFFIX)})
        who = f"pid {', '.join(map(str, lockers[:LISTED]))}" if lockers else "a process of another container"
        return f"{', '.join(files)} locked as shared by {who}"

    def _describe_obstacles(self, request: _Request, own: Ticket) -> str:
        now = time.time()
        held: dict[str, list[str]] = {}
        for name in request.candidates:
            line = self._folder.look(name + SUFFIX)
            if line is not None:
                owner = claimant.read(line)
                held.setdefault("somebody unknown" if owner is None else owner.words(now), []).append(name)
        what = [f"{_list(names)} held by {words}" for words, names in held.items()]
        earlier = self._queue.ahead(request.candidates, own)
        if earlier is not None:
            what.append(
                f"{earlier.count} of {_list(sorted(earlier.candidates))} to go first to {earlier.who.words(now)}"
            )
        for other in self._residents.others(request.candidates):
            if other.running and (request.alone or other.run != self._run):
                what.append(f"{_list(sorted(other.running))} held by {other.who.words(now)}")
            if request.alone and (idle := other.resources - other.running):
                what.append(f"{_list(sorted(idle))} with idle ranks of {other.who.words(now)}")
        if foreign := self._list_shared(request.candidates):
            what.append(self._say_shared(foreign))
        if len(what) > LISTED:
            what[LISTED:] = [f"and {len(what) - LISTED} more"]
        return "; ".join(what) or "all free by now"

    def _hand_over(self, holder: str, files: Mapping[str, LockFile]) -> tuple[dict[str, int], tuple[str, ...]]:
        """Writes the new owner into the files, and waits for the memory of those before it.

        Returns:
            Bytes in use before the new owner, by GPU, and the GPUs whose memory was not back in time.
        """
        left_behind = {name: _read_left_behind(file) for name, file in files.items()}
        owner = Claimant.of_this_process(holder)
        # The dead one's measure first, and ours afterwards: if we die while we wait, the next one waits for the same.
        self._write(files, owner, left_behind)
        if self._used is None:
            return {}, ()
        due = {name: used for name, used in left_behind.items() if used is not None and has_memory(name)}
        unreturned = await_return(due, self._used, RETURN_SECONDS)
        used_now = {name: self._used(name) for name in files if has_memory(name)}
        # The least of both, so that slack does not add up over deaths; what is not back by now counts as another's.
        before = {
            name: used if name in unreturned else min(used, due.get(name, used)) for name, used in used_now.items()
        }
        self._write(files, owner, before)
        return before, unreturned

    def _write(self, files: Mapping[str, LockFile], owner: Claimant, used: Mapping[str, int | None]) -> None:
        for name, file in files.items():
            with self._folder.failures(name + SUFFIX):
                file.write(json.dumps(replace(owner, used_bytes=used.get(name)).to_json()))


def _list(names: Sequence[str]) -> str:
    if len(names) > LISTED:
        return f"{len(names)} from {names[0]} to {names[-1]}"
    return ", ".join(names)


def _read_left_behind(file: LockFile) -> int | None:
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
