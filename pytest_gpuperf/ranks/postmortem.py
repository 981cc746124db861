"""How a run of ranks ended that did not end well: which rank is to blame, and what the others did."""

from __future__ import annotations

import math
import re
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_gpuperf.ranks import payload
from pytest_gpuperf.ranks.collectives import Collective, describe_last, find_disagreement, say_ranks
from pytest_gpuperf.ranks.cures import list_cures
from pytest_gpuperf.ranks.endings import Answered, Died, Ending, Stuck
from pytest_gpuperf.ranks.failures import (
    CollectiveMismatch,
    RankDied,
    RankError,
    RanksSkipped,
    RankTimeout,
    RemoteError,
    ResultError,
)
from pytest_gpuperf.ranks.handling import Handled, describe_handled, find_cause, format_tracebacks, group_handled
from pytest_gpuperf.ranks.messages import Raised, Withdrawal
from pytest_gpuperf.ranks.spec import format_rank_name
from pytest_gpuperf.ranks.stacks import find_own_place, list_frames, place, roll_call
from pytest_gpuperf.ranks.stalemate import Hopeless
from pytest_gpuperf.ranks.tracebacks import format_headline
from pytest_gpuperf.ranks.unlike import Unlike, find_first_unlike, list_shared_groups
from pytest_gpuperf.ranks.unserved import Unserved

_MISMATCHED = "mismatched collectives"
_CLEANUP = "A cleanup (except, finally, __exit__) that not all ranks enter must not wait for the others"
NOTICE = 0.5  # seconds by which a death may be noticed later than its peers raised for it
_CLOSING = 5.0  # seconds from when a rank closes its group until its exception leaves the program
_PEER_GONE = re.compile("[Cc]onnection (reset|closed) by peer|Broken pipe|remote process exited")
"""What gloo and NCCL say where another rank has closed its side."""
RESULT_NOT_PICKLABLE = "pytest_gpuperf.ranks.rank.ResultNotPicklable"  # its type; the rank's main loads torch


@dataclass(frozen=True, slots=True)
class World:
    """What a report says of the ranks that ran a program."""

    size: int
    backend: str
    program: str
    timeout: float
    """Seconds that the run was given."""
    own: bool = True
    """Whether it was the test's; groups are opened and closed for tests without their having a say in it."""
    whereabouts: tuple[str, ...] = ()
    """In a cluster, of each rank its node and GPU, in words."""

    def rank(self, rank: int) -> str:
        """A rank, as reports name it: ``rank 9 of 16 (node gpu-b, GPU 1, nccl)``."""
        return format_rank_name(rank, self.size, self.backend, self.whereabouts[rank] if self.whereabouts else "")

    @property
    def nodes(self) -> list[str]:
        """In a cluster, which ranks are on which nodes, in a line."""
        nodes: dict[str, list[int]] = {}
        for rank, where in enumerate(self.whereabouts):
            nodes.setdefault(where.partition(",")[0], []).append(rank)
        return ["; ".join(f"{node} has {say_ranks(ranks)}" for node, ranks in nodes.items())] if nodes else []


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


def has_failed(endings: Sequence[Ending]) -> bool:
    """Whether the run failed, on any rank, or in that its ranks did not do the same."""
    return not all(isinstance(ending, Answered) for ending in endings) or _is_mismatched(endings)


def inquire_after(endings: Sequence[Ending]) -> bool:
    """Whether the ranks' collectives belong to the story: they tell nothing of a plain exception."""
    return any(isinstance(ending, (Died, Stuck)) for ending in endings) or _is_mismatched(endings)


def post_mortem(
    endings: Sequence[Ending],
    world: World,
    issued: Mapping[int, Sequence[Collective]] | None = None,
    groups: Mapping[str, Sequence[int]] | None = None,
    stalemate: Hopeless | None = None,
    handling: Mapping[int, Sequence[Handled]] | None = None,
    noted: Mapping[int, Sequence[Collective]] | None = None,
    interruption: BaseException | None = None,
) -> PostMortem:
    """Finds what happened first: the program's own exception, a death, one that a cleanup holds back, or only waiting.

    Args:
        endings: one for each rank, in rank order; ``has_failed`` says that they are a failure.
        world: the run they belong to.
        issued: the collectives of each rank whose record could be had.
        groups: global ranks of process groups that are not over all ranks.
        stalemate: why stuck ranks were given up before the timeout, if they were.
        handling: exceptions that stuck ranks are handling.
        noted: the collectives that ranks noted themselves, with all that is known of each.
        interruption: what ended the wait from outside, as Ctrl-C does; the story is noted on it.
    """
    issued = issued or {}
    failed = [
        (_compute_moment(ending), rank) for rank, ending in enumerate(endings) if isinstance(ending, (Raised, Died))
    ]
    root = min(failed)[1] if failed else None
    parted = find_disagreement(issued, groups or {})
    unlike = find_first_unlike(noted or {})
    hopeless = stalemate if root is None else None
    handling = handling or {}
    cause = find_cause(handling, world.size) if root is None else None
    lead = "" if cause is None else describe_handled(*cause)
    error: BaseException
    handles = [line for group in group_handled(handling) if (line := describe_handled(*group)) != lead]
    if interruption is not None:
        error = interruption
    elif hopeless is not None:
        error = _make_hopeless_error(hopeless, world, lead)
    elif all(isinstance(ending, Answered) for ending in endings):
        error = _make_mismatch_error(endings, world) if unlike is None else _make_unlike_error(unlike, world)
    else:
        error = _make_error(endings, root, world, lead)
    notes = (
        []
        if isinstance(error, RanksSkipped)
        else handles + _describe_others(endings, root, interrupted=interruption is not None)
    )
    if interruption is not None:
        notes = [*_describe_so_far(endings, root, world), *([lead] if lead else []), *notes]
    if unlike is not None and isinstance(error, CollectiveMismatch) and str(unlike) in str(error):
        notes += unlike.places
    elif parted is not None:
        notes.append(parted)
    elif unlike is not None:
        notes += [str(unlike), *unlike.places]
    if parted is not None or unlike is not None or any(isinstance(ending, Stuck) for ending in endings):
        notes += list_shared_groups(noted or {})
    if not isinstance(error, RanksSkipped):
        notes += [*world.nodes, *list_cures(endings)]
    for note in notes:
        error.add_note(note)
    collectives = [("collectives", "\n".join(describe_last(issued)))] if issued else []
    return PostMortem(
        error=error,
        rank=root,
        cause=_describe_cause(endings, root, hopeless, interruption) if cause is None else cause[1].headline,
        place=_place(endings, root) if cause is None else cause[1].origin,
        story=(_format_first_line(error), *notes),
        sections=(*format_tracebacks(handling), *collectives, *_list_stacks(endings), *_list_tracebacks(endings, root)),
    )


def describe_exit(code: int | None) -> str:
    """How a process ended, in words, the signal by its name."""
    if code is None:
        return "died, and its exit code was not reported"
    if code < 0:
        known = -code in set(signal.Signals)
        return f"was killed by {signal.Signals(-code).name if known else f'signal {-code}'}"
    return f"exited with code {code} before it returned"


def _make_error(endings: Sequence[Ending], root: int | None, world: World, lead: str = "") -> BaseException:
    if root is None:
        return _make_timeout_error(endings, world, lead)
    ending = endings[root]
    where = f"{world.rank(root)} in {world.program}"
    if isinstance(ending, Died):
        death = RankDied(f"{where} {_say(ending)}")
        death.codes = {rank: one.code for rank, one in enumerate(endings) if isinstance(one, Died)}
        death.others_returned = all(isinstance(one, (Died, Answered)) for one in endings)
        return death
    assert isinstance(ending, Raised)
    return _make_withdrawal_error(endings, root, world) if ending.withdrew else _rebuild_exception(ending, where)


def _rebuild_exception(ending: Raised, where: str) -> BaseException:
    if ending.kind == RESULT_NOT_PICKLABLE:
        return ResultError(f"{where}: {ending.message}")
    error: BaseException | None = None
    if ending.exception is not None:
        try:
            error = payload.load_exception(ending.exception)
        except Exception:  # the exception's own code runs here; its text is there in any case
            error = None
    # sys.exit(), pytest.exit() or Ctrl-C on a rank is no order to this process.
    if not isinstance(error, Exception) or _is_order(error):
        return _make_remote_error(ending, where)
    try:
        error.add_note(f"raised on {where}")
    except Exception:  # a frozen exception, or one with notes of its own kind
        return _make_remote_error(ending, where)
    return error


def _make_remote_error(ending: Raised, where: str) -> RemoteError:
    return RemoteError(f"{where} raised {_format_headline(ending)}\n{ending.text}")


def _is_order(error: Exception) -> bool:
    # pytest.exit() raises an Exception, and would end the whole test run.
    pytest = sys.modules.get("pytest")
    return pytest is not None and isinstance(error, pytest.exit.Exception)


def _compute_moment(ending: Raised | Died) -> float:
    # A process that dies closes its sockets first: its peers may raise before the death is known here. And before
    # that of a node, which nobody tells.
    if isinstance(ending, Died) and ending.lost:
        return -math.inf
    if isinstance(ending, Died):
        return ending.at - NOTICE
    # A rank closes its group as its exception passes a ``finally``, and leaves the program after its peers have raised.
    return ending.at + _CLOSING if _PEER_GONE.search(ending.message) else ending.at


def _make_withdrawal_error(endings: Sequence[Ending], first: int, world: World) -> BaseException:
    ending = endings[first]
    assert isinstance(ending, Raised)
    assert ending.withdrew is not None
    ways = {(other.withdrew, other.message) if isinstance(other, Raised) else None for other in endings}
    where = f"{world.rank(first)} in {world.program}"
    if len(ways) == 1:
        return (
            RanksSkipped(ending.message) if ending.withdrew is Withdrawal.SKIPPED else _rebuild_exception(ending, where)
        )
    return RankError(
        f"{world.rank(first)} {ending.withdrew.value} in {world.program} and the others "
        f"did not do the same: ranks must agree, so that none hides another's failure. It {_say(endings[first])}"
    )


def _make_timeout_error(endings: Sequence[Ending], world: World, lead: str) -> RankTimeout:
    stuck = [rank for rank, ending in enumerate(endings) if isinstance(ending, Stuck)]
    longer = "if it needs longer, set timeout=SECONDS in @pytest.mark.ranks, or in @on_ranks for an adopted class"
    cure = longer if world.own else "the stacks tell why"
    return RankTimeout(
        f"{_say_lead(lead)}{say_ranks(stuck)} of {world.size} ({world.backend}) did not return from {world.program} "
        f"within {world.timeout:g} s{f'. {_CLEANUP}' if lead else f'; {cure}'}"
    )


def _make_hopeless_error(hopeless: Hopeless, world: World, lead: str) -> RankError:
    never = f"{_say_lead(lead)}{world.program} on {world.size} ranks ({world.backend}) can never end: {hopeless}"
    if isinstance(hopeless, Unserved):
        return RankTimeout(never)
    return CollectiveMismatch(f"{never}. {_CLEANUP if lead else hopeless.rule}")


def _describe_so_far(endings: Sequence[Ending], root: int | None, world: World) -> list[str]:
    stuck = [rank for rank, ending in enumerate(endings) if isinstance(ending, Stuck)]
    said = f"{say_ranks(stuck)} of {world.size} ({world.backend}) had not returned from {world.program} when this came"
    first = [] if root is None else [f"rank {root} {_say(endings[root])}"]
    return [said, *first] if stuck else [f"all ranks had ended {world.program} when this came", *first]


def _say_lead(lead: str) -> str:
    return f"{lead}, and its cleanup has not returned: " if lead else ""


def _is_mismatched(endings: Sequence[Ending]) -> bool:
    # A collective that some ranks of a group issue and others do not is an error even where nobody waited for it.
    counts = {ending.collectives for ending in endings if isinstance(ending, Answered)}
    return all(isinstance(ending, Answered) for ending in endings) and len(counts) > 1 and min(counts) >= 0


def _make_mismatch_error(endings: Sequence[Ending], world: World) -> CollectiveMismatch:
    if not _is_mismatched(endings):
        return CollectiveMismatch(
            f"all ranks returned from {world.program} ({world.backend}), but not from the same collectives. Every rank "
            "of a group must issue each of its collectives"
        )
    said: dict[int, list[int]] = {}
    for rank, ending in enumerate(endings):
        assert isinstance(ending, Answered)
        said.setdefault(ending.collectives, []).append(rank)
    counts = "; ".join(f"{say_ranks(ranks)} issued {count}" for count, ranks in said.items())
    return CollectiveMismatch(
        f"all ranks returned from {world.program}, but not from the same collectives on the default group "
        f"({world.backend}): {counts}. Every rank of a group must issue each of its collectives"
    )


def _make_unlike_error(unlike: Unlike, world: World) -> CollectiveMismatch:
    return CollectiveMismatch(f"all ranks returned from {world.program} ({world.backend}), but {unlike}. {unlike.rule}")


def _describe_others(endings: Sequence[Ending], root: int | None, *, interrupted: bool) -> list[str]:
    first = None if root is None else endings[root]
    too: dict[int, str] = {}
    same: dict[str, list[int]] = {}
    for rank, ending in enumerate(endings):
        if rank == root or isinstance(ending, Stuck):
            continue
        if isinstance(ending, Raised) and _is_same_place(ending, first):
            too[rank] = _find_difference(ending, first)
        else:
            same.setdefault(_say(ending), []).append(rank)
    said = _list_raised_too(too) + [f"{say_ranks(ranks)} {what}" for what, ranks in same.items()]
    stuck = {rank: ending.stacks for rank, ending in enumerate(endings) if isinstance(ending, Stuck)}
    if stuck and root is not None and not interrupted:
        said.append(f"{say_ranks(list(stuck))} had not returned when killed:")
    return said + roll_call(stuck)


def _list_raised_too(differences: Mapping[int, str]) -> list[str]:
    if not differences:
        return []
    others = [one for one in dict.fromkeys(differences.values()) if one]
    what = f"at the same line: {'; '.join(others)}" if others else "the same"
    return [f"{say_ranks(list(differences))} raised {what}"]


def _find_difference(ending: Raised, first: Ending | None) -> str:
    """Return how the text is another than the first rank's, whose first line may be equal; empty if it is the same."""
    assert isinstance(first, Raised)
    if _format_headline(ending) != _format_headline(first):
        return _format_headline(ending)
    mine, theirs = (_list_own_lines(one.message) for one in (ending, first))
    return next((line for line in mine if line not in theirs), "")


def _list_own_lines(message: str) -> list[str]:
    """Return a message's lines without those by which pytest explains an assertion, which name objects by address."""
    return [line.strip() for line in message.splitlines() if not line.lstrip().startswith("+")]


def _is_same_place(ending: Ending, first: Ending | None) -> bool:
    return (
        isinstance(ending, Raised)
        and isinstance(first, Raised)
        and (ending.kind, ending.place) == (first.kind, first.place)
    )


def _say(ending: Ending) -> str:
    match ending:
        case Answered():
            return "returned"
        case Died():
            return _end(ending, f" {place(ending.stack)}" if list_frames(ending.stack) else "")
        case Raised():
            return f"raised {_format_headline(ending)}" + (f", at {ending.place}" if ending.place else "")
        case Stuck():
            return "had not returned"


def _end(ending: Died, where: str = "") -> str:
    if ending.lost:
        return f"was lost: {ending.lost}"
    return describe_exit(ending.code) + where + (f": {ending.last_words}" if ending.last_words else "")


def _format_headline(ending: Raised) -> str:
    return format_headline(ending.kind, ending.message)


def _format_first_line(error: BaseException) -> str:
    try:
        text = str(error).partition("\n")[0]
    except Exception:  # the exception's own code runs here
        text = ""
    return f"{type(error).__qualname__}: {text}" if text else type(error).__qualname__


def _describe_cause(
    endings: Sequence[Ending], root: int | None, hopeless: Hopeless | None, interruption: BaseException | None
) -> str:
    if interruption is not None and root is None:
        return _format_first_line(interruption)
    if hopeless is not None:
        return "timeout" if isinstance(hopeless, Unserved) else _MISMATCHED
    if root is None:
        return "timeout" if any(isinstance(ending, Stuck) for ending in endings) else _MISMATCHED
    ending = endings[root]
    if isinstance(ending, Raised):
        return _format_headline(ending)
    return _end(ending) if isinstance(ending, Died) else _say(ending)


def _place(endings: Sequence[Ending], root: int | None) -> str:
    ending = None if root is None else endings[root]
    if isinstance(ending, Died):
        return find_own_place(ending.stack)
    return ending.place if isinstance(ending, Raised) else ""


def _list_stacks(endings: Sequence[Ending]) -> list[tuple[str, str]]:
    same: dict[str, list[int]] = {}
    for rank, ending in enumerate(endings):
        if isinstance(ending, Stuck):
            same.setdefault(ending.stacks, []).append(rank)
    return [(f"stack of {say_ranks(ranks)}", stack) for stack, ranks in same.items()]


def _list_tracebacks(endings: Sequence[Ending], root: int | None) -> list[tuple[str, str]]:
    first = None if root is None else endings[root]
    same: dict[tuple[str, str], tuple[str, list[int]]] = {}
    for rank, ending in enumerate(endings):
        if rank != root and isinstance(ending, Raised) and not _is_same_place(ending, first):
            same.setdefault((ending.kind, ending.place), (ending.text, []))[1].append(rank)
    return [(f"traceback of {say_ranks(ranks)}", text.rstrip()) for text, ranks in same.values()]
