"""A prefix that one rank has computed is used by another: pages are looked for at home, then on all other ranks.

Ranks take turns, so that it is known who holds what. In each turn one rank serves a request, or gets other weights;
the others answer what they have, and send what they are asked for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from pytest_gpuperf import Context
from suites.serving.programs.disaggregated import Part, Setting
from suites.serving.programs.engine import Request, require_room, serve
from suites.serving.programs.model import llama
from suites.serving.programs.pages import Found, PagePool, fingerprint, prefix_keys
from suites.serving.programs.transfer import Note, format_note, noted_format

LOCAL, FETCHED = "local", "fetched"
"""Pages that the rank had, and pages that another rank sent."""
ENDS = {Found.MISS: "miss", Found.EVICTED: "evicted", Found.STALE: "stale"}
"""Why the first page that is missing was nowhere to be had."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One rank serves a request, or gets other weights."""

    rank: int
    request: Request | None = None
    seed: int = 0
    """The seed of the weights, if there is no request."""


@dataclass
class Reused:
    """What a rank has done."""

    answers: dict[int, list[int]] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    computed: int = 0
    """Tokens of prompts that went through the model."""


def take_turns(
    ctx: Context, *, turns: Sequence[Turn], setting: Setting, others: dict[int, Setting] | None = None
) -> Reused:
    """Takes all turns.

    Args:
        ctx: the rank.
        turns: in their order.
        setting: of all ranks.
        others: settings of single ranks.

    Raises:
        ForeignPages: a rank's pages have another shape or dtype.
    """
    setting = (others or {}).get(ctx.rank, setting)
    part, done = Part.of(ctx, setting), Reused()
    for turn in turns:
        if turn.request is None:
            if turn.rank == ctx.rank:
                change_weights(part, setting, turn.seed)
        elif turn.rank == ctx.rank:
            count(part, turn.request, done)
            before = part.engine.model.seen
            served = serve(part.engine, [turn.request])
            done.answers[turn.request.name] = served[turn.request.name].answer
            # The last token of an answer is never read.
            done.computed += part.engine.model.seen - before - (turn.request.new_tokens - 1)
        else:
            lend(part, turn.rank)
    ctx.barrier()  # a rank that has ended may still be read from
    return done


def change_weights(part: Part, setting: Setting, seed: int) -> None:
    """Gives the rank's model other weights. Pages of the former ones stay, and are stale."""
    model = llama(setting.config, seed=seed, dtype=setting.dtype, device=part.ctx.device)
    part.engine.model.model = model
    part.pool.change_model(fingerprint(model))


def count(part: Part, request: Request, done: Reused) -> None:
    """Brings what can be had of a prompt's pages into the rank's pool, and counts where they were.

    Raises:
        PromptTooLong: the request needs more pages than the pool has.
    """
    require_room(request, part.pool)
    keys = prefix_keys(request.prompt, part.pool.layout.page_tokens)
    local, fetched, end = bring(part, keys)
    done.counts[LOCAL] += local
    done.counts[FETCHED] += fetched
    if local + fetched < len(keys):
        done.counts[ENDS[end]] += 1


def bring(part: Part, keys: Sequence[str]) -> tuple[int, int, Found]:
    """Fetches the pages of a prompt that this rank lacks, up to the first one that no rank has.

    Returns how many pages the rank had before that one, how many it fetched, and why nobody has that one.
    """
    pool, mailbox, rank = part.pool, part.mailbox, part.ctx.rank
    home = {key: pool.find(key) for key in keys}
    for key, (state, _, _) in home.items():
        if state is Found.STALE:
            pool.drop(key)  # the model that computed it is no more
    states = {key: {rank: state} for key, (state, _, _) in home.items()}
    peers = [each for each in range(part.ctx.world_size) if each != rank]
    asked = [key for key in keys if states[key][rank] is not Found.HIT]
    for peer in peers:
        mailbox.post(peer, "lookup", {"keys": asked})
    for peer in peers:
        for key, state in zip(asked, _judged(pool, peer, mailbox.take(peer, "found")), strict=True):
            states[key][peer] = state
    # By page, the rank that has it: this one, or the first of the others.
    sources = [max(states[key], key=lambda each: (states[key][each], each == rank, -each)) for key in keys]
    number = next(
        (place for place, (key, of) in enumerate(zip(keys, sources, strict=True)) if states[key][of] is not Found.HIT),
        len(keys),
    )
    fetched = [(key, of) for key, of in zip(keys[:number], sources, strict=False) if of != rank]
    held = [home[key][1] for key, of in zip(keys[:number], sources, strict=False) if of == rank]
    pool.hold(held)
    arriving = pool.take(len(fetched))
    for peer in peers:
        mine = [(key, page) for (key, of), page in zip(fetched, arriving, strict=True) if of == peer]
        mailbox.post(peer, "fetch", {"keys": [key for key, _ in mine], "pages": [page for _, page in mine]})
        if mine:
            part.transport.receive([page for _, page in mine], peer)
    for (key, _), page in zip(fetched, arriving, strict=True):
        pool.keep(key, page)
    pool.release(held + arriving)
    end = max(states[keys[number]].values()) if number < len(keys) else Found.HIT
    return len(held), len(fetched), end


def lend(part: Part, to: int) -> None:
    """Tells another rank which pages this one has of those that it wants, and sends it those that it asks for."""
    pool, mailbox = part.pool, part.mailbox
    found = {key: pool.find(key) for key in mailbox.take(to, "lookup")["keys"]}
    held = {key: page for key, (_, page, _) in found.items() if page >= 0}
    pool.hold(held.values())
    states = [(int(state), model) for state, _, model in found.values()]
    mailbox.post(to, "found", {"format": format_note(pool.layout), "states": states})
    fetch = mailbox.take(to, "fetch")
    if fetch["keys"]:
        part.transport.send([held[key] for key in fetch["keys"]], fetch["pages"], to)
    pool.release(held.values())


def _judged(pool: PagePool, peer: int, answer: Note) -> list[Found]:
    """What a rank's pages are to this one, whose model decides.

    Raises:
        ForeignPages: that rank's pages have another shape or dtype, which other weights would not explain.
    """
    theirs = noted_format({**answer["format"], "model": pool.layout.model})
    pool.layout.require(theirs, f"pages of rank {peer}")
    return [
        Found(state) if not model else Found.HIT if model == pool.layout.model else Found.STALE
        for state, model in answer["states"]
    ]
