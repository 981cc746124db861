"""A world of live ranks: starts them, sends them programs, waits for all of them at once."""

from __future__ import annotations

import contextlib
import pickle
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from multiprocessing.connection import wait
from typing import TypeVar

from pytest_gpuperf.ranks.channel import EMPTY, Parcel
from pytest_gpuperf.ranks.collectives import find_disagreement, say_ranks
from pytest_gpuperf.ranks.endings import Answered, Died, Ending, Stuck, is_undisturbed
from pytest_gpuperf.ranks.excerpt import Excerpt
from pytest_gpuperf.ranks.failures import RankDied
from pytest_gpuperf.ranks.inquiries import collect_issued, collect_noted
from pytest_gpuperf.ranks.messages import Account, Compare, OpenGroup, Raised, Run, Settle, Settled
from pytest_gpuperf.ranks.node_ranks import NodeRanks, Nodes, Request
from pytest_gpuperf.ranks.postmortem import PostMortem, World, has_failed, inquire_after, post_mortem
from pytest_gpuperf.ranks.scene import Scene
from pytest_gpuperf.ranks.spec import PoolSpec, make_pool_environ
from pytest_gpuperf.ranks.stalemate import Hopeless, Vigil
from pytest_gpuperf.ranks.unlike import find_first_unlike, has_unlike_tallies

GRACE = 2.0  # seconds that the others get after the first failure, unless told otherwise
GROUP_TIMEOUT = 60.0  # seconds to leave the old group and open a new one; 1.5 s is usual on 8 GPUs
COLLECTIVE_MARGIN = 120.0  # seconds beyond the run's timeout after which a backend may give up by itself
_LIVE = 0.05  # seconds between looks at what ranks print, where somebody watches

Listener = Callable[[int, str, str, str], None]
"""Called with rank, its title, stream and text, as soon as a rank has printed."""
_T = TypeVar("_T")


class Pool:
    """Ranks that stay alive between runs. Anything unclean in a run ends the pool or renews its communicators.

    The test's group is renewed after every failure; what it is split from stays if all ranks raised before they met.
    A test that left its group as it found it leaves it to the next one, if it is split from another.
    """

    def __init__(
        self,
        nodes: Nodes,
        spec: PoolSpec,
        environ: Mapping[str, str],
        *,
        grace: float = GRACE,
        delays: int | None = None,
        listener: Listener | None = None,
        debug: bool = False,
    ) -> None:
        """Starts the ranks.

        Args:
            nodes: start them.
            spec: how many, and on what.
            environ: the controller's environment.
            grace: seconds that the other ranks get after the first failure.
            delays: seed of random delays of the ranks; None for none.
            listener: hears what ranks print as they print it; ``output`` then has nothing of it.
            debug: whether a rank whose program raised is kept for ``debug``.

        Raises:
            LaunchError: a rank did not come up; names it, and what it printed.
        """
        self.spec = spec
        self.alive = True
        self.failure: PostMortem | None = None
        """How the last run ended, if it failed."""
        self._starter = nodes
        self._grace = grace
        self._delays = None if spec.timed else delays
        self._listener = listener
        self._debug = debug
        self._group: str | None = None
        self._timeout = 0.0
        """Timeout of the group's collectives, seconds."""
        self._kept = False
        """Whether the group is there for whoever comes next."""
        self._clean = True
        self._resting = False
        self._runs = 0
        self.environ = make_pool_environ(spec, environ)
        started = nodes.start(spec, self.environ, live=listener is not None)
        self._nodes = started.nodes
        self._store_port = started.store_port

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids in rank order; empty once the ranks have ended."""
        return tuple(pid for node in self._nodes for pid in node.pids)

    def open_group(self, name: str, timeout: float) -> None:
        """Gives the ranks a process group of this name, unless they have it already.

        Args:
            name: of the group.
            timeout: seconds that its collectives must bear with at least.
        """
        kept, self._kept = self._kept, False
        if kept and timeout == self._timeout and self._is_unchanged():  # asked again: a rank may have died meanwhile
            self._group = name
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
        self._group, self._timeout, self._clean = name, timeout, True

    def run(
        self,
        task: Parcel,
        *,
        program: str,
        seed: int,
        timeout: float,
        outlives_deaths: bool = False,
        scene: Scene | None = None,
    ) -> list[Parcel]:
        """Sends the task to every rank and returns their results in rank order.

        Args:
            task: entry, arguments and keyword arguments, pickled.
            program: its name in reports.
            seed: of the test; each rank adds its number to it.
            timeout: seconds.
            outlives_deaths: whether the other ranks have until the timeout after one died, and not just the grace.
            scene: what the program finds of this process's state; None for what the ranks started with.

        Raises:
            BaseException: what the program raised on the rank that failed first, or a RankError.
        """
        __tracebackhide__ = True
        self._runs += 1
        request = Run(self._runs, seed, self._debug, scene or Scene(), self._delays)
        return self._exchange(request, program, timeout, task, outlives_deaths=outlives_deaths)

    def settle(self, *, rest: bool = False) -> list[str]:
        """Has the ranks close what a test opened, and tells what it left behind otherwise, by rank.

        Ranks that are not as they were before the test are ended.

        Args:
            rest: whether the pool's own communicator goes too, with its device memory.
        """
        if not self.alive:
            return []
        try:
            self._kept = not rest and self._is_unchanged()
            keep = self._kept or (self.spec.timed and not rest)  # all perf tests of a launch have one group
            if not keep:
                self._group = None
            self._runs += 1
            request = Settle(self._runs, keep, rest, self._starter.would_preload)
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
            self._starter.note_used(settled.modules)
            for text in settled.left:
                said.setdefault(text, []).append(rank)
        if said:
            self.close()
        return [f"{say_ranks(ranks)}: {text}" for text, ranks in said.items()]

    def _is_unchanged(self) -> bool:
        # Where no base is kept, no rank would say so.
        if self._group is None or not self.spec.gpus or self.spec.timed:
            return False
        self._runs += 1
        answers = self._exchange(Compare(self._runs), "comparing the process groups", GROUP_TIMEOUT)
        issued = {pickle.loads(answer.stream) for answer in answers}
        return len(issued) == 1 and None not in issued

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
        if failure is None or failure.rank is None:
            return False
        self._runs += 1
        return self._find_node(failure.rank).debug(failure.rank, self._runs, terminal)

    def output(self) -> list[tuple[int, str, Excerpt]]:
        """What the ranks printed since the last call: rank, stream, text; nothing where a listener has heard it."""
        self._listen()
        return [printed for node in self._nodes for printed in node.output()]

    def leave(self) -> None:
        """Asks the ranks to end, and need not wait; ``close`` sees to it that they have."""
        self.alive = False
        for node in self._nodes:
            node.leave()

    def close(self) -> None:
        """Ends the ranks: asks first, then kills."""
        for node in self._nodes:
            node.close()
        self.kill()

    def kill(self) -> None:
        """Ends the ranks at once, with everything they started."""
        self.alive = False
        for node in self._nodes:
            node.kill()

    def _find_node(self, rank: int) -> NodeRanks:
        return self._nodes[self.spec.place(rank).node]

    def _exchange(
        self, request: Request, program: str, timeout: float, task: Parcel = EMPTY, *, outlives_deaths: bool = False
    ) -> list[Parcel]:
        __tracebackhide__ = True
        self.failure = None
        graced = (Raised,) if outlives_deaths else (Raised, Died)
        found: dict[int, Ending] = {}
        where = tuple(map(self.spec.whereabouts, range(self.spec.world_size))) if self.spec.nodes else ()
        own = isinstance(request, Run)
        world = World(self.spec.world_size, self.spec.backend, program, timeout, own, where)
        try:
            stalemate = self._gather(request, task, timeout, self._make_vigil(request), graced, found)
        except BaseException as error:  # Ctrl-C: the ranks are somewhere in the middle
            told: PostMortem | None = None
            try:
                told = self.failure = self._inquire_at_interruption(error, found, world) if own else None
            finally:
                self.kill()
            if told is not None and not isinstance(error, Exception):
                raise error.with_traceback(None) from None  # where the wait stood is of no interest
            raise
        endings = [found[rank] for rank in range(self.spec.world_size)]
        if has_failed(endings) or has_unlike_tallies(endings):
            self._fail(endings, world, stalemate)
        return [ending.payload for ending in endings if isinstance(ending, Answered)]

    def _make_vigil(self, request: Request) -> Vigil | None:
        if not isinstance(request, Run) or self.spec.world_size == 1:
            return None

        def ask(ranks: Collection[int], whole: bool) -> Mapping[int, Account]:
            return self._collect_accounts(ranks, whole=whole)

        return Vigil(ask, self._grace, timed=self.spec.timed)

    def _inquire_at_interruption(
        self, error: BaseException, found: dict[int, Ending], world: World
    ) -> PostMortem | None:
        """Notes on what came from outside where each rank was; it costs some tenths of a second."""
        with contextlib.suppress(Exception):  # what came is raised in any case
            waiting = [rank for rank in range(world.size) if rank not in found]
            found.update(self._collect(waiting, lambda node, ranks: node.give_up(ranks)))
            endings = [found[rank] for rank in range(world.size)]
            alive = [rank for rank, ending in enumerate(endings) if not isinstance(ending, Died)]
            accounts = self._collect_accounts(alive, whole=True)
            issued, groups = collect_issued(accounts)
            handling = {rank: accounts[rank].handling for rank in waiting if rank in accounts}
            return post_mortem(endings, world, issued, groups, None, handling, collect_noted(accounts), error)
        return None

    def _fail(self, endings: Sequence[Ending], world: World, stalemate: Hopeless | None) -> None:
        __tracebackhide__ = True
        alive = [rank for rank, ending in enumerate(endings) if not isinstance(ending, Died)]
        parted = all(isinstance(ending, Answered) for ending in endings)  # happened says that they differ
        accounts = self._collect_accounts(alive, whole=True) if parted or inquire_after(endings) else {}
        issued, groups = collect_issued(accounts)
        handling = {rank: one.handling for rank, one in accounts.items() if isinstance(endings[rank], Stuck)}
        noted = collect_noted(accounts)
        unlike = find_first_unlike(noted)
        if parted and unlike is None and len(issued) == len(endings) and find_disagreement(issued, groups) is None:
            return  # gloo's own count has sends and receives in it, which need not be the same on all ranks
        own_groups = any(isinstance(ending, Answered) and ending.collectives < 0 for ending in endings)
        if parted and unlike is None and not has_failed(endings) and (own_groups or len(issued) < len(endings)):
            return  # a program that opens groups itself may end them as it likes; or what differs cannot be told
        self._group = None
        if not is_undisturbed(endings):
            self._clean = False
        self.failure = failure = post_mortem(endings, world, issued, groups, stalemate, handling, noted)
        raised = [isinstance(ending, Raised) and ending.usable for ending in endings]
        answered = [isinstance(ending, Answered) for ending in endings]
        if all(answered) or not all(a or r for a, r in zip(answered, raised, strict=True)):
            if self._debug and failure.rank is not None and raised[failure.rank]:
                self.alive = False
                for node in self._nodes:
                    node.kill(keep=failure.rank if node is self._find_node(failure.rank) else None)
            else:
                self.kill()
        raise failure.error

    def _gather(
        self,
        request: Request,
        task: Parcel,
        timeout: float,
        vigil: Vigil | None,
        graced: tuple[type[Ending], ...],
        endings: dict[int, Ending],
    ) -> Hopeless | None:
        for node in self._nodes:
            endings.update(node.post(request, task))
        waiting = [rank for rank in range(self.spec.world_size) if rank not in endings]
        stalemate: Hopeless | None = None
        deadline = time.monotonic() + (
            self._grace if any(isinstance(one, graced) for one in endings.values()) else timeout
        )
        while waiting:
            if not all(isinstance(ending, Answered) for ending in endings.values()):
                vigil = None  # the grace runs already
            until = deadline if vigil is None else min(deadline, vigil.due)
            awaited = [one for node in self._nodes for one in node.list_awaited()]
            ready = wait(awaited, timeout=self._compute_patience(until))  # type: ignore[arg-type]
            self._listen()
            if not ready:
                now = time.monotonic()
                if vigil is not None and vigil.due <= now < deadline:
                    stalemate = vigil.look(waiting, list(endings))
                if stalemate is None and now < deadline:
                    continue
                endings.update(self._collect(waiting, lambda node, ranks: node.give_up(ranks)))
                break
            for node in self._nodes:
                for rank, ending in node.news(ready).items():
                    waiting.remove(rank)
                    endings[rank] = ending
                    if isinstance(ending, graced):
                        deadline = min(deadline, time.monotonic() + self._grace)
        self._listen()
        return stalemate

    def _collect_accounts(self, ranks: Collection[int], *, whole: bool) -> dict[int, Account]:
        return self._collect(ranks, lambda node, some: node.ask(some, whole=whole))

    def _collect(
        self, ranks: Collection[int], ask: Callable[[NodeRanks, Collection[int]], Callable[[], Mapping[int, _T]]]
    ) -> dict[int, _T]:
        """What nodes tell of ranks; all are asked before one is waited for."""
        parts = zip(self._nodes, self.spec.parts, strict=True)
        asked = [ask(node, some) for node, part in parts if (some := [rank for rank in ranks if rank in part])]
        return {rank: told for answer in asked for rank, told in answer().items()}

    def _compute_patience(self, deadline: float) -> float:
        left = max(0.0, deadline - time.monotonic())
        return left if self._listener is None else min(left, _LIVE)

    def _listen(self) -> None:
        if self._listener is None:
            return
        for node in self._nodes:
            for rank, stream, text in node.listen():
                self._listener(rank, self.spec.title(rank), stream, text)
