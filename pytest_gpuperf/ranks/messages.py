"""What the controller and a rank say to each other. Plain data, pickled by the standard pickle.

Programs and results are enclosed, pickled (see ``payload``), so that a message can always be read, whatever state a
program left its own objects in. Every request carries a number that its answer repeats:
what answers another request is dropped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from pytest_gpuperf.ranks.collectives import Collective
from pytest_gpuperf.ranks.handling import Handled
from pytest_gpuperf.ranks.scene import Scene
from pytest_gpuperf.ranks.spec import Opening, Place


class Withdrawal(Enum):
    """How a program leaves a test without failing it; all ranks must, so that none hides another's failure."""

    SKIPPED = "skipped"
    REJECTED = "rejected the example"


@dataclass(frozen=True, slots=True)
class Start:
    """Tells a new process which rank it is. Answered by Started."""

    rank: int
    world_size: int
    backend: str
    threads: int
    """Intra-op threads of the rank, so that ranks on one host do not fight over its cores."""
    cores: frozenset[int] = frozenset()
    """That the rank's threads run on; empty: where the system puts them."""
    opening: Opening = Opening.GROUP
    place: Place | None = None
    """Its place in a cluster; None if all ranks are on this machine."""
    timed: bool = False
    """Whether it measures: if not, it runs as ``SCHED_BATCH`` on gloo."""


@dataclass(frozen=True, slots=True)
class Started:
    """The rank is up; rank 0 has opened the store."""

    store_port: int | None
    """Port of the rendezvous store; only rank 0 names one."""
    main_thread: int
    """Its identity, by which faulthandler names it."""


@dataclass(frozen=True, slots=True)
class OpenGroup:
    """Asks for a fresh default process group, or none, in place of the present groups. Answered like a Run."""

    run: int
    name: str
    """Prefix of the group's keys in the store; unique in the life of the pool."""
    store_port: int
    collective_timeout: float
    """Seconds after which a collective gives up by itself; longer than any run's timeout."""
    fresh: bool
    """Whether nothing of an earlier group may be used: after a failure, ranks may disagree on its state."""


@dataclass(frozen=True, slots=True)
class Run:
    """Asks a rank to call a program. Answered by Returned or Raised with the same ``run``.

    Enclosed is a pickled ``(entry, args, kwargs)``; the rank calls ``entry(context, *args, **kwargs)``.
    """

    run: int
    seed: int
    """The rank adds its number to it."""
    debug: bool = False
    """Whether to keep the frames of an exception for a Debug."""
    scene: Scene = field(default_factory=Scene)
    """What the program finds of the pytest process's state."""
    delays: int | None = None
    """Seed of random delays, together with ``seed``; None for none."""


@dataclass(frozen=True, slots=True)
class Compare:
    """Asks whether the groups are as they were when the test's was opened. Answered by Returned.

    Enclosed is, pickled, how many collectives the test's group has issued; None if the next test cannot have it.
    """

    run: int


@dataclass(frozen=True, slots=True)
class Settle:
    """Asks what a test left behind, after its last run. Answered by Returned, with a pickled Settled enclosed."""

    run: int
    keep: bool
    """Whether the groups stay, for the next test."""
    rest: bool
    """Whether to give up the process groups and the device memory as well."""
    modules: tuple[str, ...]
    """Modules of which the controller wants to know whether the rank has imported them."""


@dataclass(frozen=True, slots=True)
class Settled:
    """What a rank tells after a test."""

    left: list[str]
    """What the test left behind, in words."""
    modules: list[str]
    """The modules among those in the request that the rank has imported."""


@dataclass(frozen=True, slots=True)
class Debug:
    """Opens the debugger at the exception of the last run. Answered by Asked, and by Returned in the end."""

    run: int


@dataclass(frozen=True, slots=True)
class Asked:
    """The rank's debugger printed a text and waits for Typed."""

    text: str


@dataclass(frozen=True, slots=True)
class Typed:
    """What the user typed, with its newline; empty at the end of the input."""

    text: str


@dataclass(frozen=True, slots=True)
class Tally:
    """What a rank issued on one group in a run, in short. Ranks that issued alike have equal ones."""

    group: str
    """The group's name."""
    members: tuple[int, ...]
    """Its global ranks."""
    count: int
    digest: int
    """Digest of the arguments that all ranks must pass alike to each collective."""
    balance: int
    """All ranks' together are 0 if each sends to each what that one expects."""


@dataclass(frozen=True, slots=True)
class Returned:
    """The request came to its end on this rank; its result is enclosed."""

    run: int
    collectives: int = 0
    """How many collectives the program issued on the default group; below 0 where that cannot be told."""
    tallies: tuple[Tally, ...] | None = None
    """The tallies of each group of more than one rank; None if the rank keeps none."""


@dataclass(frozen=True, slots=True)
class Raised:
    """The program raised on this rank."""

    run: int
    at: float
    """Moment of the exception, ``time.monotonic()``: one clock for all processes of a host."""
    exception: bytes | None
    """The pickled exception with its traceback, or None where it cannot be pickled."""
    kind: str
    """Qualified name of the exception's type."""
    message: str
    """The exception's own text."""
    text: str
    """The formatted traceback, as the rank would have printed it."""
    place: str
    """``file:line in function`` of the innermost frame that is the program's own."""
    usable: bool
    """Whether the rank's device still answers, so that the process can be used again."""
    groups: tuple[int, int] | None = None
    """How many process groups it has made, and has, if the program had issued nothing before it raised; else None."""
    withdrew: Withdrawal | None = None
    """Whether this is a way to leave a test that is no failure, if all ranks take it."""


@dataclass(frozen=True, slots=True)
class Inquiry:
    """Asks a rank's second thread what the rank is doing. Answered by Account."""

    number: int
    """Repeated by the answer."""
    whole: bool = True
    """Whether it wants what the flight recorder holds, too: that takes 20 ms and more."""


@dataclass(frozen=True, slots=True)
class Passing:
    """A message that a rank is sending or receiving."""

    sends: bool
    peers: tuple[int, ...]
    """Global ranks: the one that it is with, or all that it may be from."""
    nbytes: int


@dataclass(frozen=True, slots=True)
class Account:
    """What a rank is doing, and has issued."""

    number: int
    """The inquiry's."""
    position: tuple[object, ...] = ()
    """The main thread's innermost call and those that led to it; the same as long as it is in the same one."""
    waits: bool = False
    """Whether that call waits for a collective, as far as its name tells."""
    threads: bool = False
    """Whether the program's own threads run."""
    sought: str = ""
    """The address of the store that the main thread waits to reach while nobody listens there."""
    passing: Passing | None = None
    """The send or receive that the main thread is in."""
    children: bool = False
    """Whether it has child processes; only in a whole account."""
    issued: tuple[tuple[str, int], ...] = ()
    """How many operations each process group has issued, by name."""
    members: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Global ranks of each process group that this rank is in and that has a name."""
    opening: tuple[str, tuple[int, ...]] | None = None
    """The name and the ranks of the group that it is in the middle of opening."""
    collectives: list[Collective] | None = None
    """The collectives of the run, in the order of issue; None if they are not known, or not asked for."""
    calls: list[Collective] | None = None
    """The collectives as the rank itself noted them, with all that is known of each; None if it notes none."""
    earlier: list[Collective] = field(default_factory=list)
    """The collectives of the same default group before the run, as far as the recorder still has them."""
    complete: bool = False
    """Whether the recorder still holds the first collective of the default group, and so all that came later."""
    group_is_the_tests: bool = False
    """Whether the default group is the one that was opened for the test: groups that a program opens reuse names."""
    tells_ends: bool = False
    """Whether ``Collective.done`` can be relied on: with NCCL."""
    handling: tuple[Handled, ...] = ()
    """Exceptions that the main thread and the program's own threads are handling; only in a whole account."""

    @property
    def everything(self) -> list[Collective] | None:
        """All collectives that the recorder holds; None if they cannot be had."""
        return None if self.collectives is None else self.earlier + self.collectives


Request = Start | OpenGroup | Run | Compare | Settle | Debug
