"""A world of live ranks: starts them, sends them programs, waits for all of them at once."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from multiprocessing.connection import wait

from pytest_gpuperf.ranks.channel import EMPTY, Letter, Parcel
from pytest_gpuperf.ranks.collectives import disagreement, say_ranks
from pytest_gpuperf.ranks.endings import Answered, Died, Ending, Stuck, undisturbed
from pytest_gpuperf.ranks.excerpt import Excerpt
from pytest_gpuperf.ranks.failures import LaunchError, RankDied
from pytest_gpuperf.ranks.forkserver_client import ForkserverClient
from pytest_gpuperf.ranks.inquiries import Inquiries
from pytest_gpuperf.ranks.messages import (
    Account,
    Asked,
    Debug,
    OpenGroup,
    Raised,
    Returned,
    Run,
    Settle,
    Settled,
    Start,
    Started,
    Typed,
)
from pytest_gpuperf.ranks.postmortem import PostMortem, World, happened, inquire_after, post_mortem
from pytest_gpuperf.ranks.process import EXIT_TIMEOUT, STREAMS, RankProcess, await_ends, kill
from pytest_gpuperf.ranks.scarce_files import shortage
from pytest_gpuperf.ranks.spec import PoolSpec, environ_of, rank_environ
from pytest_gpuperf.ranks.stalemate import Stalemate, Vigil

START_TIMEOUT = 120.0  # seconds for all ranks to report in; CUDA contexts on 8 GPUs take some of them
GRACE = 2.0  # seconds that the others get after the first failure, unless told otherwise
GROUP_TIMEOUT = 60.0  # seconds to leave the old group and open a new one; 1.5 s is usual on 8 GPUs
COLLECTIVE_MARGIN = 120.0  # seconds beyond the run's timeout after which a backend may give up by itself
_CRASHES = [-signal.SIGSEGV, -signal.SIGABRT, -signal.SIGBUS, -signal.SIGFPE, -signal.SIGILL]  # faulthandler's
_STACKS_TIMEOUT = 0.5  # seconds for faulthandler to write; it needs a running kernel, not a running interpreter
_LIVE = 0.05  # seconds between looks at what ranks print, where somebody watches

Request = OpenGroup | Run | Settle
Listener = Callable[[int, int, str, str], None]
"""Called with rank, world size, stream and text, as soon as a rank has printed."""


class Pool:
    """Ranks that stay alive between runs. Anything unclean in a run ends the pool or renews its communicators.

    The test's group is renewed after every failure; what it is split from stays if all ranks raised before they met.
    """

    def __init__(
        self,
        client: ForkserverClient,
        spec: PoolSpec,
        environ: Mapping[str, str],
        *,
        grace: float = GRACE,
        listener: Listener | None = None,
        debug: bool = False,
    ) -> None:
        """Starts the ranks.

        Args:
            client: forks them.
            spec: how many, and on what.
            environ: the controller's environment.
            grace: seconds that the other ranks get after the first failure.
            listener: hears what ranks print as they print it; ``output`` then has nothing of it.
            debug: whether a rank whose program raised is kept for ``debug``.

        Raises:
            LaunchError: a rank did not come up; names it, and what it printed.
        """
        self.spec = spec
        self.alive = True
        self.failure: PostMortem | None = None
        """How the last run ended, if it failed."""
        self._client = client
        self._grace = grace
        self._listener = listener
        self._debug = debug
        self._group: str | None = None
        self._clean = True
        self._resting = False
        self._runs = 0
        self.environ = rank_environ(spec, environ)
        self._processes: list[RankProcess] = []
        self._inquiries = Inquiries(self._processes)
        self._last_output: list[tuple[int, str, Excerpt]] = []
        try:
            self._store_port = self._start(self.environ)
        except OSError as error:
            self.kill()  # first: the message counts what is open without these ranks
            ranks = f"{spec.world_size} rank{'s' if spec.world_size > 1 else ''} ({spec.backend})"
            raise LaunchError(f"{ranks} cannot be started: {shortage(error, spec.world_size)}") from error
        except BaseException:
            self.kill()
            raise

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids in rank order; empty once the ranks have ended."""
        return tuple(process.pid for process in self._processes)

    def open_group(self, name: str, timeout: float) -> None:
        """Gives the ranks a process group of this name, unless they have it already.

        Args:
            name: of the group.
            timeout: seconds that its collectives must bear with at least.
        """
        if self._group == name:
            return
        self._group = None
        self._resting = False
        self._runs += 1
        request = OpenGroup(
            run=self._runs,
            name=f"{self._runs}/{name}",
            store_port=self._store_port,
            collective_timeout=timeout + COLLECTIVE_MARGIN,
            fresh=not self._clean,
        )
        self._exchange(request, "opening the process group", GROUP_TIMEOUT)
        self._group, self._clean = name, True

    def run(self, task: Parcel, *, program: str, seed: int, timeout: float, alike: bool = False) -> list[Parcel]:
        """Sends the task to every rank and returns their results in rank order.

        Args:
            task: entry, arguments and keyword arguments, pickled.
            program: its name in reports.
            seed: of the test.
            timeout: seconds.
            alike: whether all ranks draw from this seed; else each adds its number to it.

        Raises:
            BaseException: what the program raised on the rank that failed first, or a RankError.
        """
        __tracebackhide__ = True
        self._runs += 1
        return self._exchange(Run(self._runs, seed, alike, self._debug), program, timeout, task)

    def settle(self, *, rest: bool = False) -> list[str]:
        """Has the ranks close what a test opened, and tells what it left behind otherwise, by rank.

        Ranks that are not as they were before the test are ended.

        Args:
            rest: whether the pool's own communicator goes too, with its device memory.
        """
        if not self.alive:
            return []
        self._runs += 1
        if rest:
            self._group = None
        try:
            request = Settle(self._runs, rest, self._client.would_preload)
            answers = self._exchange(request, "settling after the test", GROUP_TIMEOUT)
        except RankDied:  # after the test's last run
            self.kill()
            raise
        except Exception as error:  # whatever the groups that a test left may raise
            self.kill()
            return [f"process groups that could not be closed: {type(error).__name__}: {error}"]
        said: dict[str, list[int]] = {}
        for rank, answer in enumerate(answers):
            settled: Settled = pickle.loads(answer.stream)
            self._client.used(settled.modules)
            for text in settled.left:
                said.setdefault(text, []).append(rank)
        if said:
            self.close()
        return [f"{say_ranks(ranks)}: {text}" for text, ranks in said.items()]

    def rest(self) -> None:
        """Has the ranks give up their communicators and device memory, if they have any; the processes stay."""
        if self.spec.gpus and not self._resting:
            self.settle(rest=True)
            self._resting = True

    def debug(self, terminal: Callable[[str], str]) -> bool:
        """Opens the debugger on the rank that failed last, if it is still there; returns when the user leaves it.

        Args:
            terminal: prints a text and returns the line that the user types.
        """
        failure = self.failure
        if failure is None or failure.rank is None or failure.rank >= len(self._processes):
            return False
        connection = self._processes[failure.rank].connection
        self._runs += 1
        try:
            connection.send(Debug(self._runs))
            while isinstance(reply := connection.receive()[0], Asked):
                connection.send(Typed(terminal(reply.text)))
        except (OSError, EOFError):
            return False
        return True

    def output(self) -> list[tuple[int, str, Excerpt]]:
        """What the ranks printed since the last call: rank, stream, text; nothing where a listener has heard it."""
        self._listen()
        printed, self._last_output = self._last_output, []
        for rank, process in enumerate(self._processes):
            for stream in STREAMS:
                text = process.printed(stream)
                if text.size:
                    printed.append((rank, stream, text))
        return printed

    def close(self) -> None:
        """Ends the ranks: asks first, then kills."""
        for process in self._processes:
            process.connection.hang_up()
        # NCCL ranks may wait for one another in their exit handlers; nothing of theirs is needed any more.
        await_ends(self._client, self._processes, 0.2 if self.spec.gpus else 1.0)
        self.kill()

    def kill(self) -> None:
        """Ends the ranks at once, with everything they started."""
        self.alive = False
        kill(self._client, self._processes)
        self._last_output = self.output()
        for process in self._processes:
            process.close()
        self._processes.clear()

    def _start(self, environ: Mapping[str, str]) -> int:
        size = self.spec.world_size
        threads = max(1, (os.cpu_count() or 1) // size)
        cores = self.spec.cores or (frozenset(),) * size
        for rank in range(size):
            self._processes.append(RankProcess.forked(self._client, environ_of(rank, self.spec, environ)))
        for rank, process in enumerate(self._processes):
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it has ended, which is told below
                start = Start(rank, size, self.spec.backend, threads, cores[rank], self.spec.opening)
                process.connection.send(start)
        deadline = time.monotonic() + START_TIMEOUT
        port: int | None = None
        for rank, process in enumerate(self._processes):
            if not process.connection.poll(max(0.0, deadline - time.monotonic())):
                raise self._not_started(rank, f"did not start within {START_TIMEOUT:g} s")
            try:
                started, _ = process.connection.receive()
            except (EOFError, ConnectionResetError):
                raise self._not_started(rank, "ended while it started") from None
            assert isinstance(started, Started)
            process.main_thread = started.main_thread
            port = port if started.store_port is None else started.store_port
        assert port is not None
        return port

    def _not_started(self, rank: int, what: str) -> LaunchError:
        printed = str(self._processes[rank].printed("stderr")).strip()
        return LaunchError(
            f"rank {rank} of {self.spec.world_size} ({self.spec.backend}) {what}; it printed: {printed or 'nothing'}"
        )

    def _exchange(self, request: Request, program: str, timeout: float, task: Parcel = EMPTY) -> list[Parcel]:
        __tracebackhide__ = True
        self.failure = None
        try:
            with Letter(request, task) as letter:
                endings, stalemate = self._gather(letter, request.run, timeout, self._vigil(request))
        except BaseException:  # Ctrl-C: the ranks are somewhere in the middle
            self.kill()
            raise
        if happened(endings):
            own = isinstance(request, Run)
            self._fail(endings, World(self.spec.world_size, self.spec.backend, program, timeout, own), stalemate)
        return [ending.payload for ending in endings if isinstance(ending, Answered)]

    def _vigil(self, request: Request) -> Vigil | None:
        if not isinstance(request, Run) or self.spec.world_size == 1:
            return None

        def ask(ranks: Collection[int], whole: bool) -> Mapping[int, Account]:
            return self._inquiries.accounts(ranks, whole=whole)

        return Vigil(ask, self._grace, timed=self.spec.timed)

    def _fail(self, endings: Sequence[Ending], world: World, stalemate: Stalemate | None) -> None:
        __tracebackhide__ = True
        alive = [rank for rank, ending in enumerate(endings) if not isinstance(ending, Died)]
        issued, groups = self._inquiries.issued(alive) if inquire_after(endings) else ({}, {})
        returned = all(isinstance(ending, Answered) for ending in endings)
        if returned and len(issued) == len(endings) and disagreement(issued, groups) is None:
            return  # gloo's own count has sends and receives in it, which need not be the same on all ranks
        self._group = None
        if not undisturbed(endings):
            self._clean = False
        self.failure = failure = post_mortem(endings, world, issued, groups, stalemate)
        raised = [isinstance(ending, Raised) and ending.usable for ending in endings]
        answered = [isinstance(ending, Answered) for ending in endings]
        if all(answered) or not all(a or r for a, r in zip(answered, raised, strict=True)):
            if self._debug and failure.rank is not None and raised[failure.rank]:
                self.alive = False
                kill(self._client, [one for rank, one in enumerate(self._processes) if rank != failure.rank])
            else:
                self.kill()
        raise failure.error

    def _gather(
        self, request: Letter, run: int, timeout: float, vigil: Vigil | None
    ) -> tuple[list[Ending], Stalemate | None]:
        endings: dict[int, Ending] = {}
        waiting: dict[int, int] = {}  # by file descriptor
        for rank, process in enumerate(self._processes):
            try:
                process.send(request)
            except (BrokenPipeError, ConnectionResetError):
                endings[rank] = self._died(rank)
            else:
                waiting[process.connection.fileno()] = rank
        stalemate: Stalemate | None = None
        deadline = time.monotonic() + (self._grace if endings else timeout)
        while waiting:
            if not all(isinstance(ending, Answered) for ending in endings.values()):
                vigil = None  # the grace runs already
            until = deadline if vigil is None else min(deadline, vigil.due)
            ready = wait([*waiting, *self._client.sockets], timeout=self._patience(until))
            self._listen()
            if not ready:
                now = time.monotonic()
                if vigil is not None and vigil.due <= now < deadline:
                    stalemate = vigil.look(list(waiting.values()), list(endings))
                if stalemate is None and now < deadline:
                    continue
                endings.update(self._give_up(list(waiting.values())))
                break
            for fd in self._ended(ready, waiting):
                rank = waiting[fd]
                ending = self._read(rank, run)
                if ending is None:
                    continue
                del waiting[fd]
                endings[rank] = ending
                if not isinstance(ending, Answered):
                    deadline = min(deadline, time.monotonic() + self._grace)
        self._listen()
        return [endings[rank] for rank in range(self.spec.world_size)], stalemate

    def _ended(self, ready: Sequence[object], waiting: Mapping[int, int]) -> list[int]:
        """Of the channels those that are ready; also of ranks that ended while a child of theirs holds theirs open."""
        found = [fd for fd in waiting if fd in ready]
        if len(found) < len(ready):
            found += [
                fd
                for fd, rank in waiting.items()
                if fd not in found and self._client.exit_code(self._processes[rank].pid, 0) is not None
            ]
        return found

    def _patience(self, deadline: float) -> float:
        left = max(0.0, deadline - time.monotonic())
        return left if self._listener is None else min(left, _LIVE)

    def _listen(self) -> None:
        if self._listener is None:
            return
        for rank, process in enumerate(self._processes):
            for stream in STREAMS:
                for text in process.printed_whole(stream):
                    self._listener(rank, self.spec.world_size, stream, text)

    def _read(self, rank: int, run: int) -> Ending | None:
        process = self._processes[rank]
        try:
            if not process.connection.poll(0) and self._client.exit_code(process.pid, 0) is not None:
                return self._died(rank)
            reply, result = process.connection.receive()
        except (EOFError, ConnectionResetError):
            return self._died(rank)
        # A reply to another run cannot be taken for this one's.
        if not isinstance(reply, (Returned, Raised)) or reply.run != run:
            return None
        return reply if isinstance(reply, Raised) else Answered(result, reply.collectives)

    def _died(self, rank: int) -> Died:
        at = time.monotonic()
        process = self._processes[rank]
        code = self._client.exit_code(process.pid, EXIT_TIMEOUT)
        # Where it ended otherwise, what its standard error holds is a child's or the program's own.
        words = process.last_words() if code == -signal.SIGABRT else ""
        stack = process.last_stack() if code in _CRASHES else ""
        return Died(at, code, words, stack)

    def _give_up(self, ranks: Sequence[int]) -> dict[int, Ending]:
        at = time.monotonic()
        for rank in ranks:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._processes[rank].pid, signal.SIGUSR1)
        until = time.monotonic() + _STACKS_TIMEOUT
        while time.monotonic() < until and not all(self._processes[rank].has_dumped for rank in ranks):
            time.sleep(0.01)  # no event tells that another process has written to a file
        time.sleep(0.05)  # a dump is several writes
        return {rank: Stuck(at, self._processes[rank].stack()) for rank in ranks}
