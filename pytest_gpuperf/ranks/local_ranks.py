"""The ranks of a pool that this machine has: all of them, or the part of one node of a cluster."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from multiprocessing.connection import wait

from pytest_gpuperf.ranks.channel import Letter, Parcel
from pytest_gpuperf.ranks.endings import Answered, Died, Ending, Stuck
from pytest_gpuperf.ranks.excerpt import Excerpt
from pytest_gpuperf.ranks.failures import LaunchError
from pytest_gpuperf.ranks.forkserver_client import ForkserverClient
from pytest_gpuperf.ranks.inquiries import Inquiries
from pytest_gpuperf.ranks.messages import Account, Asked, Debug, Raised, Returned, Start, Started, Typed
from pytest_gpuperf.ranks.node_ranks import Request
from pytest_gpuperf.ranks.node_ranks import Started as StartedRanks
from pytest_gpuperf.ranks.process import EXIT_TIMEOUT, STREAMS, RankProcess, await_ends, kill
from pytest_gpuperf.ranks.scarce_files import describe_shortage
from pytest_gpuperf.ranks.spec import PoolSpec, make_rank_environ

START_TIMEOUT = 120.0  # seconds for all ranks to report in; CUDA contexts on 8 GPUs take some of them
_CRASHES = [-signal.SIGSEGV, -signal.SIGABRT, -signal.SIGBUS, -signal.SIGFPE, -signal.SIGILL]  # faulthandler's
_STACKS_TIMEOUT = 0.5  # seconds for faulthandler to write; it needs a running kernel, not a running interpreter


class LocalRanks:
    """Ranks that this process has started, and holds."""

    def __init__(
        self, client: ForkserverClient, spec: PoolSpec, environ: Mapping[str, str], ranks: range, *, live: bool
    ) -> None:
        """Starts them, and waits until they are up.

        Args:
            client: forks them.
            spec: of their pool.
            environ: of the pool's ranks.
            ranks: which of them.
            live: whether what they print is heard, and is no output then.

        Raises:
            LaunchError: a rank did not come up; names it, and what it printed.
        """
        self._client = client
        self._spec = spec
        self._processes: dict[int, RankProcess] = {}
        self._inquiries = Inquiries(self._processes)
        self._live = live
        self._last_output: list[tuple[int, str, Excerpt]] = []
        self._last_heard: list[tuple[int, str, str]] = []
        self._waiting: dict[int, int] = {}
        """The ranks that have not ended the request, by the file descriptors of their connections."""
        self._run = 0
        self.store_port: int | None = None
        """Port of the store, if rank 0 is among them."""
        try:
            self._start(environ, ranks)
        except OSError as error:
            self.kill()  # first: the message counts what is open without these ranks
            said = f"{len(ranks)} rank{'s' if len(ranks) > 1 else ''} ({spec.backend})"
            raise LaunchError(f"{said} cannot be started: {describe_shortage(error, len(ranks))}") from error
        except BaseException:
            self.kill()
            raise

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids in rank order; empty once the ranks have ended."""
        return tuple(process.pid for process in self._processes.values())

    @property
    def waits(self) -> bool:
        """Whether a rank has not ended the request."""
        return bool(self._waiting)

    def post(self, request: Request, task: Parcel) -> dict[int, Ending]:
        """Sends a request to every rank; returns how those ended that were not there any more.

        Raises:
            OSError: there is no memory, or no file descriptor, for a large task.
        """
        endings: dict[int, Ending] = {}
        self._run = request.run
        self._waiting.clear()
        with Letter(request, task) as letter:
            for rank, process in self._processes.items():
                try:
                    process.send(letter)
                except (BrokenPipeError, ConnectionResetError):
                    endings[rank] = self._report_death(rank)
                else:
                    self._waiting[process.connection.fileno()] = rank
        return endings

    def list_awaited(self) -> Sequence[object]:
        """What becomes readable when there may be news; nothing once all ranks have ended the request."""
        return [*self._waiting, *self._client.sockets] if self._waiting else []

    def news(self, ready: Collection[object]) -> dict[int, Ending]:
        """How ranks ended the request since the last call; waits for none.

        Args:
            ready: of what is awaited, and of others, what is readable.
        """
        endings: dict[int, Ending] = {}
        for fd in self._find_ended(ready):
            rank = self._waiting[fd]
            answered = fd in ready or self._processes[rank].connection.poll(0)
            ending = self._read(rank) if answered else self._report_death(rank)
            if ending is not None:
                del self._waiting[fd]
                endings[rank] = ending
        return endings

    def give_up(self, ranks: Collection[int]) -> Callable[[], dict[int, Ending]]:
        """Asks ranks that have not ended the request for their stacks; what it returns waits for these."""
        at = time.monotonic()
        for rank in ranks:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._processes[rank].pid, signal.SIGUSR1)

        def stuck() -> dict[int, Ending]:
            until = at + _STACKS_TIMEOUT
            while time.monotonic() < until and not all(self._processes[rank].has_dumped for rank in ranks):
                time.sleep(0.01)  # no event tells that another process has written to a file
            time.sleep(0.05)  # a dump is several writes
            return {rank: Stuck(at, self._processes[rank].stack()) for rank in ranks}

        return stuck

    def ask(self, ranks: Iterable[int], *, whole: bool) -> Callable[[], dict[int, Account]]:
        """Asks ranks what they do; what it returns waits for the accounts of those that answer in time.

        Args:
            ranks: which.
            whole: whether with what their flight recorders hold, which takes longer.
        """
        return self._inquiries.ask(ranks, whole=whole)

    def listen(self) -> Iterator[tuple[int, str, str]]:
        """All that ranks printed since the last look: rank, stream, text."""
        heard, self._last_heard = self._last_heard, []
        yield from heard
        for rank, process in self._processes.items():
            for stream in STREAMS:
                for text in process.read_printed_whole(stream):
                    yield rank, stream, text

    def output(self) -> list[tuple[int, str, Excerpt]]:
        """What is to be shown of what ranks printed since the last look: rank, stream, text."""
        printed, self._last_output = self._last_output, []
        for rank, process in self._processes.items():
            for stream in STREAMS:
                text = process.read_printed(stream)
                if text.size:
                    printed.append((rank, stream, text))
        return printed

    def debug(self, rank: int, run: int, terminal: Callable[[str], str]) -> bool:
        """Opens the debugger on a rank, if it is still there; returns when the user leaves it.

        Args:
            rank: the rank.
            run: the number of the request.
            terminal: prints a text and returns the line that the user types.
        """
        if rank not in self._processes:
            return False
        connection = self._processes[rank].connection
        try:
            connection.send(Debug(run))
            while isinstance(reply := connection.receive()[0], Asked):
                connection.send(Typed(terminal(reply.text)))
        except (OSError, EOFError):
            return False
        return True

    def leave(self) -> None:
        """Asks the ranks to end, and waits for nothing."""
        for process in self._processes.values():
            process.connection.hang_up()

    def close(self) -> None:
        """Ends the ranks: asks first, then kills."""
        self.leave()
        processes = list(self._processes.values())
        # NCCL ranks may wait for one another in their exit handlers; nothing of theirs is needed any more.
        await_ends(self._client, processes, 0.2 if self._spec.gpus else 1.0)
        self.kill()

    def kill(self, *, keep: int | None = None) -> None:
        """Ends the ranks at once, with everything they started.

        Args:
            keep: a rank that stays, and whose files stay.
        """
        self._waiting.clear()
        if keep is not None:
            kill(self._client, [process for rank, process in self._processes.items() if rank != keep])
            return
        processes = list(self._processes.values())
        kill(self._client, processes)
        if self._live:
            self._last_heard = list(self.listen())
        else:
            self._last_output = self.output()
        for process in processes:
            process.close()
        self._processes.clear()

    def _start(self, environ: Mapping[str, str], ranks: range) -> None:
        spec = self._spec
        threads = max(1, len(os.sched_getaffinity(0)) // len(ranks))
        for rank in ranks:
            self._processes[rank] = RankProcess.fork(self._client, make_rank_environ(rank, spec, environ))
        for rank, process in self._processes.items():
            cores = spec.cores[rank] if spec.cores else frozenset[int]()
            place = spec.place(rank) if spec.nodes else None
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it has ended, which is told below
                start = Start(rank, spec.world_size, spec.backend, threads, cores, spec.opening, place, spec.timed)
                process.connection.send(start)
        deadline = time.monotonic() + START_TIMEOUT
        for rank, process in self._processes.items():
            if not process.connection.poll(max(0.0, deadline - time.monotonic())):
                raise self._make_start_error(rank, f"did not start within {START_TIMEOUT:g} s")
            try:
                started, _ = process.connection.receive()
            except (EOFError, ConnectionResetError):
                raise self._make_start_error(rank, "ended while it started") from None
            assert isinstance(started, Started)
            process.main_thread = started.main_thread
            self.store_port = self.store_port if started.store_port is None else started.store_port

    def _make_start_error(self, rank: int, what: str) -> LaunchError:
        printed = str(self._processes[rank].read_printed("stderr")).strip()
        return LaunchError(f"{self._spec.name(rank)} {what}; it printed: {printed or 'nothing'}")

    def _find_ended(self, ready: Collection[object]) -> list[int]:
        """Return the channels that are ready, and those of ended ranks that a child still holds open."""
        found = [fd for fd in self._waiting if fd in ready]
        if len(found) < len(ready):
            found += [
                fd
                for fd, rank in self._waiting.items()
                if fd not in found and self._client.exit_code(self._processes[rank].pid, 0) is not None
            ]
        return found

    def _read(self, rank: int) -> Ending | None:
        process = self._processes[rank]
        try:
            reply, result = process.connection.receive()
        except (EOFError, ConnectionResetError):
            return self._report_death(rank)
        # A reply to another run cannot be taken for this one's.
        if not isinstance(reply, (Returned, Raised)) or reply.run != self._run:
            return None
        return reply if isinstance(reply, Raised) else Answered(result, reply.collectives, reply.tallies)

    def _report_death(self, rank: int) -> Died:
        at = time.monotonic()
        process = self._processes[rank]
        code = self._client.exit_code(process.pid, EXIT_TIMEOUT)
        # Where it ended otherwise, what its standard error holds is a child's or the program's own.
        words = process.last_words() if code == -signal.SIGABRT else ""
        stack = process.read_last_stack() if code in _CRASHES else ""
        return Died(at, code, words, stack)


class LocalNode:
    """This machine, as the only place where ranks are started."""

    def __init__(self, client: ForkserverClient) -> None:
        self._client = client

    def warm_up(self) -> None:
        """Has what ranks are forked from begin to start; waits for nothing."""
        with contextlib.suppress(OSError):  # the first test that needs ranks fails by the same, and says so
            self._client.warm_up()

    def renew(self) -> None:
        """Ends the forkserver; the next rank starts another one."""
        self._client.close()

    def start(self, spec: PoolSpec, environ: Mapping[str, str], *, live: bool = False) -> StartedRanks:
        """Starts the ranks of a pool, and waits until they are up.

        Args:
            spec: how many, and on what.
            environ: of the ranks, by ``make_pool_environ``.
            live: whether what they print is to be heard as they print it, as it always can be here.

        Raises:
            LaunchError: a rank did not come up; names it, and what it printed.
        """
        ranks = LocalRanks(self._client, spec, environ, range(spec.world_size), live=live)
        assert ranks.store_port is not None
        return StartedRanks([ranks], ranks.store_port)

    @property
    def would_preload(self) -> tuple[str, ...]:
        """Names of modules that are worth telling of, with ``note_used``."""
        return self._client.would_preload

    def note_used(self, modules: Iterable[str]) -> None:
        """Takes note of what a rank had imported in the end: later ones find it there."""
        self._client.note_used(modules)

    def close(self) -> None:
        """Ends the forkserver, and with it every rank that still lives."""
        self._client.close()


def await_news(ranks: LocalRanks, others: Sequence[object], timeout: float | None) -> list[object]:
    """Waits until there may be news of ranks, or one of others is readable; returns what is readable."""
    return list(wait([*ranks.list_awaited(), *others], timeout))  # type: ignore[list-item]
