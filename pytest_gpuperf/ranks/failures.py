"""How a run of ranks ends when it does not end well: which rank is to blame, and what the others did."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from pytest_gpuperf.ranks import payload
from pytest_gpuperf.ranks.messages import Raised, Returned

NOTICE = 0.5  # seconds by which a death may be noticed later than its peers raised for it
_SKIPS = frozenset({"Skipped", "unittest.case.SkipTest"})  # pytest gives its outcomes the module builtins
RESULT_NOT_PICKLABLE = "pytest_gpuperf.ranks.rank.ResultNotPicklable"  # its type; the rank's main loads torch


class RankError(Exception):
    """Base of what ``run`` raises when the cause is no exception of the program's own."""


class LaunchError(RankError):
    """Ranks could not be started."""


class RankDied(RankError):
    """A rank's process ended while it ran a program."""


class RankTimeout(RankError):
    """Ranks had not come to the end of the program when the run's time was up."""


class ResultError(RankError):
    """A program returned something that cannot leave its rank."""


class RemoteError(RankError):
    """A program raised what cannot be raised here: it cannot be pickled, or would end the test run.

    The traceback is kept as text.
    """


class RanksSkipped(RankError):
    """All ranks skipped, for the same reason, which is the message."""


@dataclass(frozen=True, slots=True)
class Died:
    """The rank's process ended before it answered."""

    at: float
    code: int | None
    """Exit code; minus a signal's number where one killed it; None if unknown."""


@dataclass(frozen=True, slots=True)
class Stuck:
    """The rank had not answered when the controller gave up on it, and was killed."""

    at: float
    stacks: str
    """Stacks of its threads, as faulthandler prints them."""


Outcome = Returned | Raised | Died | Stuck


@dataclass(frozen=True, slots=True)
class World:
    """What a report says of the ranks that ran a program."""

    size: int
    backend: str
    program: str
    timeout: float


def raise_root_cause(outcomes: Sequence[Outcome], world: World) -> NoReturn:
    """Raises what happened first: the program's own exception, or a RankError.

    The exception keeps its type, message and traceback; notes on it name its rank and tell what the
    other ranks did.

    Args:
        outcomes: one for each rank, in rank order, not all of them Returned.
        world: the run they belong to.
    """
    __tracebackhide__ = True
    failed = [(_moment(outcome), rank) for rank, outcome in enumerate(outcomes) if isinstance(outcome, (Raised, Died))]
    if not failed:
        raise _timeout(outcomes, world)
    _, first = min(failed)
    outcome = outcomes[first]
    if _skipped(outcome):
        raise _skip(outcomes, first, world)
    where = f"rank {first} of {world.size} ({world.backend}) in {world.program}"
    if isinstance(outcome, Died):
        error: BaseException = RankDied(f"{where} {describe_exit(outcome.code)}")
    else:
        error = _exception(outcome, where)
    for note in _others(outcomes, first):
        error.add_note(note)
    raise error


def describe_exit(code: int | None) -> str:
    """How a process ended, in words, the signal by its name."""
    if code is None:
        return "died, and its exit code was not reported"
    if code < 0:
        known = -code in set(signal.Signals)
        return f"was killed by {signal.Signals(-code).name if known else f'signal {-code}'}"
    return f"exited with code {code} before the program returned"


def _exception(outcome: Outcome, where: str) -> BaseException:
    assert isinstance(outcome, Raised)
    if outcome.kind == RESULT_NOT_PICKLABLE:
        return ResultError(f"{where}: {outcome.message}")
    error: BaseException | None = None
    if outcome.exception is not None:
        try:
            error = payload.loads(outcome.exception)
        except Exception:  # the exception's own code runs here; its text is there in any case
            error = None
    # sys.exit(), pytest.exit() or Ctrl-C on a rank is no order to this process.
    if not isinstance(error, Exception) or _is_order(error):
        error = RemoteError(f"{where} raised {_headline(outcome)}\n{outcome.text}")
    else:
        error.add_note(f"raised on {where}")
    return error


def _is_order(error: Exception) -> bool:
    # pytest.exit() raises an Exception, and would end the whole test run.
    return (type(error).__module__, type(error).__qualname__) == ("_pytest.outcomes", "Exit")


def _moment(outcome: Raised | Died) -> float:
    # A process that dies closes its sockets first: its peers may raise before the death is known here.
    return outcome.at - NOTICE if isinstance(outcome, Died) else outcome.at


def _skipped(outcome: Outcome) -> bool:
    return isinstance(outcome, Raised) and outcome.kind in _SKIPS


def _skip(outcomes: Sequence[Outcome], first: int, world: World) -> BaseException:
    reasons = {outcome.message for outcome in outcomes if isinstance(outcome, Raised)}
    if all(map(_skipped, outcomes)) and len(reasons) == 1:
        return RanksSkipped(reasons.pop())
    error = RankError(
        f"rank {first} of {world.size} ({world.backend}) skipped in {world.program} and the others did not do the "
        f"same: ranks must agree, so that no skip hides a failure. It {_say(outcomes[first])}"
    )
    for note in _others(outcomes, first):
        error.add_note(note)
    return error


def _timeout(outcomes: Sequence[Outcome], world: World) -> RankTimeout:
    stuck = {rank: outcome for rank, outcome in enumerate(outcomes) if isinstance(outcome, Stuck)}
    error = RankTimeout(
        f"{_ranks(list(stuck))} of {world.size} ({world.backend}) did not return from {world.program} within "
        f"{world.timeout:g} s; give it longer with @pytest.mark.ranks(..., timeout=SECONDS)"
    )
    returned = [rank for rank, outcome in enumerate(outcomes) if isinstance(outcome, Returned)]
    if returned:
        error.add_note(f"{_ranks(returned)} returned")
    for rank, outcome in stuck.items():
        error.add_note(f"rank {rank} was here:\n{outcome.stacks}")
    return error


def _others(outcomes: Sequence[Outcome], first: int) -> list[str]:
    same: dict[str, list[int]] = {}
    for rank, outcome in enumerate(outcomes):
        if rank != first:
            same.setdefault(_say(outcome), []).append(rank)
    return [f"{_ranks(ranks)} {said}" for said, ranks in same.items()]


def _say(outcome: Outcome) -> str:
    match outcome:
        case Returned():
            return "returned"
        case Died():
            return describe_exit(outcome.code)
        case Raised():
            return f"raised {_headline(outcome)}"
        case Stuck():
            return f"had not returned when killed, and was here:\n{outcome.stacks}"


def _headline(outcome: Raised) -> str:
    first = outcome.message.strip().partition("\n")[0]
    return f"{outcome.kind}: {first}" if first else outcome.kind


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
