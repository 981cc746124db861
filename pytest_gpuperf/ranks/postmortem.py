"""How a run of ranks ended that did not end well: which rank is to blame, and what the others did."""

from __future__ import annotations

import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_gpuperf.ranks import payload
from pytest_gpuperf.ranks.collectives import Collective, disagreement, last_of_each, say_ranks
from pytest_gpuperf.ranks.failures import (
    CollectiveMismatch,
    RankDied,
    RankError,
    RanksSkipped,
    RankTimeout,
    RemoteError,
    ResultError,
)
from pytest_gpuperf.ranks.messages import Raised, Withdrawal
from pytest_gpuperf.ranks.outcomes import Answered, Died, Outcome, Stuck, World
from pytest_gpuperf.ranks.stacks import frames, own_place, place, roll_call

NOTICE = 0.5  # seconds by which a death may be noticed later than its peers raised for it
RESULT_NOT_PICKLABLE = "pytest_gpuperf.ranks.rank.ResultNotPicklable"  # its type; the rank's main loads torch


@dataclass(frozen=True, slots=True)
class PostMortem:
    """A run's failure, ready to be raised and to be told."""

    error: BaseException
    """What the run raises; notes on it name the rank and tell what the others did."""
    rank: int | None
    """The rank that failed first; None where no single rank did."""
    cause: str
    """In a few words: ``ValueError: no``, ``was killed by SIGKILL``, ``timeout``."""
    place: str
    """Where: ``file:line in function``; empty where that is not known."""
    story: tuple[str, ...]
    """What every rank did, a line each, the cause first."""
    sections: tuple[tuple[str, str], ...]
    """What a report shows beside the error and its notes: title, text."""


def happened(outcomes: Sequence[Outcome]) -> bool:
    """Whether the run failed, on any rank, or in that its ranks did not do the same."""
    return not all(isinstance(outcome, Answered) for outcome in outcomes) or _mismatched(outcomes)


def inquire_after(outcomes: Sequence[Outcome]) -> bool:
    """Whether the ranks' collectives belong to the story: they tell nothing of a plain exception."""
    return any(isinstance(outcome, (Died, Stuck)) for outcome in outcomes) or _mismatched(outcomes)


def post_mortem(
    outcomes: Sequence[Outcome],
    world: World,
    issued: Mapping[int, Sequence[Collective]] | None = None,
    groups: Mapping[str, Sequence[int]] | None = None,
) -> PostMortem:
    """Finds what happened first: the program's own exception, a death, or nothing but waiting.

    Args:
        outcomes: one for each rank, in rank order; ``happened`` says that they are a failure.
        world: the run they belong to.
        issued: the collectives of each rank whose record could be had.
        groups: global ranks of process groups that are not over all ranks.
    """
    issued = issued or {}
    failed = [(_moment(outcome), rank) for rank, outcome in enumerate(outcomes) if isinstance(outcome, (Raised, Died))]
    root = min(failed)[1] if failed else None
    parted = disagreement(issued, groups or {})
    error = _mismatch(outcomes, world) if _mismatched(outcomes) else _error(outcomes, root, world)
    notes = [] if isinstance(error, RanksSkipped) else _others(outcomes, root)
    if parted is not None:
        notes.append(parted)
    for note in notes:
        error.add_note(note)
    collectives = [("collectives", "\n".join(last_of_each(issued)))] if issued else []
    return PostMortem(
        error=error,
        rank=root,
        cause=_cause(outcomes, root),
        place=_place(outcomes, root),
        story=(_first_line(error), *notes),
        sections=(*collectives, *_stacks(outcomes), *_tracebacks(outcomes, root)),
    )


def describe_exit(code: int | None) -> str:
    """How a process ended, in words, the signal by its name."""
    if code is None:
        return "died, and its exit code was not reported"
    if code < 0:
        known = -code in set(signal.Signals)
        return f"was killed by {signal.Signals(-code).name if known else f'signal {-code}'}"
    return f"exited with code {code} before it returned"


def _error(outcomes: Sequence[Outcome], root: int | None, world: World) -> BaseException:
    if root is None:
        return _timeout(outcomes, world)
    outcome = outcomes[root]
    where = f"rank {root} of {world.size} ({world.backend}) in {world.program}"
    if isinstance(outcome, Died):
        return RankDied(f"{where} {_say(outcome)}")
    assert isinstance(outcome, Raised)
    return _withdrawal(outcomes, root, world) if outcome.withdrew else _exception(outcome, where)


def _exception(outcome: Raised, where: str) -> BaseException:
    if outcome.kind == RESULT_NOT_PICKLABLE:
        return ResultError(f"{where}: {outcome.message}")
    error: BaseException | None = None
    if outcome.exception is not None:
        try:
            error = payload.load_exception(outcome.exception)
        except Exception:  # the exception's own code runs here; its text is there in any case
            error = None
    # sys.exit(), pytest.exit() or Ctrl-C on a rank is no order to this process.
    if not isinstance(error, Exception) or _is_order(error):
        return _remote(outcome, where)
    try:
        error.add_note(f"raised on {where}")
    except Exception:  # a frozen exception, or one with notes of its own kind
        return _remote(outcome, where)
    return error


def _remote(outcome: Raised, where: str) -> RemoteError:
    return RemoteError(f"{where} raised {_headline(outcome)}\n{outcome.text}")


def _is_order(error: Exception) -> bool:
    # pytest.exit() raises an Exception, and would end the whole test run.
    pytest = sys.modules.get("pytest")
    return pytest is not None and isinstance(error, pytest.exit.Exception)


def _moment(outcome: Raised | Died) -> float:
    # A process that dies closes its sockets first: its peers may raise before the death is known here.
    return outcome.at - NOTICE if isinstance(outcome, Died) else outcome.at


def _withdrawal(outcomes: Sequence[Outcome], first: int, world: World) -> BaseException:
    outcome = outcomes[first]
    assert isinstance(outcome, Raised)
    assert outcome.withdrew is not None
    ways = {(other.withdrew, other.message) if isinstance(other, Raised) else None for other in outcomes}
    where = f"rank {first} of {world.size} ({world.backend}) in {world.program}"
    if len(ways) == 1:
        return RanksSkipped(outcome.message) if outcome.withdrew is Withdrawal.SKIPPED else _exception(outcome, where)
    return RankError(
        f"rank {first} of {world.size} ({world.backend}) {outcome.withdrew.value} in {world.program} and the others "
        f"did not do the same: ranks must agree, so that none hides another's failure. It {_say(outcomes[first])}"
    )


def _timeout(outcomes: Sequence[Outcome], world: World) -> RankTimeout:
    stuck = [rank for rank, outcome in enumerate(outcomes) if isinstance(outcome, Stuck)]
    cure = "give it longer with @pytest.mark.ranks(..., timeout=SECONDS)" if world.own else "the stacks tell why"
    return RankTimeout(
        f"{say_ranks(stuck)} of {world.size} ({world.backend}) did not return from {world.program} within "
        f"{world.timeout:g} s; {cure}"
    )


def _mismatched(outcomes: Sequence[Outcome]) -> bool:
    # A collective that some ranks of a group issue and others do not is an error even where nobody waited for it.
    counts = {outcome.collectives for outcome in outcomes if isinstance(outcome, Answered)}
    return all(isinstance(outcome, Answered) for outcome in outcomes) and len(counts) > 1 and min(counts) >= 0


def _mismatch(outcomes: Sequence[Outcome], world: World) -> CollectiveMismatch:
    said: dict[int, list[int]] = {}
    for rank, outcome in enumerate(outcomes):
        assert isinstance(outcome, Answered)
        said.setdefault(outcome.collectives, []).append(rank)
    counts = "; ".join(f"{say_ranks(ranks)} issued {count}" for count, ranks in said.items())
    return CollectiveMismatch(
        f"all ranks returned from {world.program}, but not from the same collectives on the default group "
        f"({world.backend}): {counts}. Every rank of a group must issue each of its collectives"
    )


def _others(outcomes: Sequence[Outcome], root: int | None) -> list[str]:
    first = None if root is None else outcomes[root]
    too: dict[int, str] = {}
    same: dict[str, list[int]] = {}
    for rank, outcome in enumerate(outcomes):
        if rank == root or isinstance(outcome, Stuck):
            continue
        if isinstance(outcome, Raised) and _same_place(outcome, first):
            too[rank] = _headline(outcome)
        else:
            same.setdefault(_say(outcome), []).append(rank)
    said = _raised_too(too, first) + [f"{say_ranks(ranks)} {what}" for what, ranks in same.items()]
    stuck = {rank: outcome.stacks for rank, outcome in enumerate(outcomes) if isinstance(outcome, Stuck)}
    if stuck and root is not None:
        said.append(f"{say_ranks(list(stuck))} had not returned when killed:")
    return said + roll_call(stuck)


def _raised_too(headlines: Mapping[int, str], first: Outcome | None) -> list[str]:
    if not headlines or not isinstance(first, Raised):
        return []
    others = [headline for headline in dict.fromkeys(headlines.values()) if headline != _headline(first)]
    return [f"{say_ranks(list(headlines))} raised the same" + (f" there: {'; '.join(others)}" if others else "")]


def _same_place(outcome: Outcome, first: Outcome | None) -> bool:
    return (
        isinstance(outcome, Raised)
        and isinstance(first, Raised)
        and (outcome.kind, outcome.place) == (first.kind, first.place)
    )


def _say(outcome: Outcome) -> str:
    match outcome:
        case Answered():
            return "returned"
        case Died():
            return _end(outcome, f" {place(outcome.stack)}" if frames(outcome.stack) else "")
        case Raised():
            return f"raised {_headline(outcome)}" + (f", at {outcome.place}" if outcome.place else "")
        case Stuck():
            return "had not returned"


def _end(outcome: Died, where: str = "") -> str:
    return describe_exit(outcome.code) + where + (f": {outcome.last_words}" if outcome.last_words else "")


def _headline(outcome: Raised) -> str:
    first = outcome.message.strip().partition("\n")[0]
    return f"{outcome.kind}: {first}" if first else outcome.kind


def _first_line(error: BaseException) -> str:
    try:
        text = str(error).partition("\n")[0]
    except Exception:  # the exception's own code runs here
        text = ""
    return f"{type(error).__qualname__}: {text}" if text else type(error).__qualname__


def _cause(outcomes: Sequence[Outcome], root: int | None) -> str:
    if root is None:
        return "mismatched collectives" if _mismatched(outcomes) else "timeout"
    outcome = outcomes[root]
    if isinstance(outcome, Raised):
        return _headline(outcome)
    return _end(outcome) if isinstance(outcome, Died) else _say(outcome)


def _place(outcomes: Sequence[Outcome], root: int | None) -> str:
    outcome = None if root is None else outcomes[root]
    if isinstance(outcome, Died):
        return own_place(outcome.stack)
    return outcome.place if isinstance(outcome, Raised) else ""


def _stacks(outcomes: Sequence[Outcome]) -> list[tuple[str, str]]:
    same: dict[str, list[int]] = {}
    for rank, outcome in enumerate(outcomes):
        if isinstance(outcome, Stuck):
            same.setdefault(outcome.stacks, []).append(rank)
    return [(f"stack of {say_ranks(ranks)}", stack) for stack, ranks in same.items()]


def _tracebacks(outcomes: Sequence[Outcome], root: int | None) -> list[tuple[str, str]]:
    first = None if root is None else outcomes[root]
    same: dict[tuple[str, str], tuple[str, list[int]]] = {}
    for rank, outcome in enumerate(outcomes):
        if rank != root and isinstance(outcome, Raised) and not _same_place(outcome, first):
            same.setdefault((outcome.kind, outcome.place), (outcome.text, []))[1].append(rank)
    return [(f"traceback of {say_ranks(ranks)}", text.rstrip()) for text, ranks in same.values()]
