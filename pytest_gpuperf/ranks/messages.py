"""What the controller and a rank say to each other. Plain data, pickled by the standard pickle.

Programs and results travel inside as bytes (see ``payload``), so that a message can always be read,
whatever state a program left its own objects in.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Start:
    """Tells a new process which rank it is. Answered by Started."""

    rank: int
    world_size: int
    backend: str
    threads: int
    """Intra-op threads of the rank, so that ranks on one host do not fight over its cores."""


@dataclass(frozen=True, slots=True)
class Started:
    """The rank is up; rank 0 has opened the store."""

    store_port: int | None
    """Port of the rendezvous store on the loopback interface; only rank 0 names one."""


@dataclass(frozen=True, slots=True)
class OpenGroup:
    """Asks for a fresh default process group in place of the present one. Answered like a Run."""

    run: int
    name: str
    """Prefix of the group's keys in the store; unique in the life of the pool."""
    store_port: int
    collective_timeout: float
    """Seconds after which a collective gives up by itself; longer than any run's timeout."""


@dataclass(frozen=True, slots=True)
class Run:
    """Asks a rank to call a program. Answered by Returned or Raised with the same ``run``."""

    run: int
    task: bytes
    """A pickled ``(entry, args, kwargs)``; the rank calls ``entry(context, *args, **kwargs)``."""
    seed: int
    """The rank adds its number to it."""


@dataclass(frozen=True, slots=True)
class Returned:
    """The program came to its end on this rank."""

    run: int
    payload: bytes


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
    usable: bool
    """Whether the rank's device still answers, so that the process can be used again."""


Reply = Started | Returned | Raised
Request = Start | OpenGroup | Run
