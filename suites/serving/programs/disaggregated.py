"""Prompts are computed on some ranks, and answers decoded on others, to which the keys and values go.

Splitwise (Patel et al., 2024) and DistServe (Zhong et al., 2024) serve so: a long prompt then delays no answer.
The first ranks compute prompts, the others decode. Request i is computed by the i-th of the former, in turn, and
decoded by the i-th of the latter. The rank that decodes says which of its pages are free. It refuses pages of another
format.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from pytest_gpuperf import Context
from suites.serving.programs.engine import PagedEngine, Request, Running, Served, Wall, require_room
from suites.serving.programs.model import PagedLlama, llama
from suites.serving.programs.pages import ForeignPages, PageFormat, PagePool, PromptTooLong
from suites.serving.programs.transfer import Mailbox, Note, Transport, format_note, noted_format, wired
from suites.shared.llama import Config

IDLE = 5e-4  # seconds between two looks for offers, if nothing is decoded
REFUSALS = {each.__name__: each for each in (ForeignPages, PromptTooLong)}


@dataclass(frozen=True, slots=True)
class Setting:
    """What one rank serves with; those that share a request must agree in all that a page depends on."""

    config: Config
    seed: int
    page_tokens: int
    pages: int
    slots: int = 4
    chunk: int = 1 << 30
    dtype: torch.dtype = torch.float64
    way: str = "messages"


@dataclass(slots=True)
class Part:
    """A rank, its pool, and the way to the others."""

    ctx: Context
    engine: PagedEngine
    mailbox: Mailbox
    transport: Transport
    served: dict[int, Served] = field(default_factory=dict)
    clock: Wall = field(default_factory=Wall)

    @classmethod
    def of(cls, ctx: Context, setting: Setting) -> Part:
        """A rank that is ready; all ranks are made at once."""
        model = llama(setting.config, seed=setting.seed, dtype=setting.dtype, device=ctx.device)
        layout = PageFormat.of(model, setting.config, setting.page_tokens)
        pool, mailbox, transport = wired(ctx, layout, setting.pages, way=setting.way)
        engine = PagedEngine(PagedLlama(model, pool), slots=setting.slots, chunk=setting.chunk)
        return cls(ctx, engine, mailbox, transport)

    @property
    def pool(self) -> PagePool:
        """The rank's pages."""
        return self.engine.model.pool

    def note(self, name: int, token: int) -> None:
        """A token of an answer has come."""
        self.served[name].answer.append(token)
        self.served[name].times.append(self.clock.now())


def places(number: int, world_size: int, prefills: int) -> tuple[int, int]:
    """Which rank computes the prompt of the request of this number, and which decodes its answer.

    Raises:
        ValueError: no rank is left for one of the two.
    """
    if not 0 < prefills < world_size:
        raise ValueError(
            f"{prefills} of {world_size} ranks compute prompts, expected 1 to {world_size - 1}: each part needs a rank"
        )
    return number % prefills, prefills + number % (world_size - prefills)


def serve_apart(
    ctx: Context,
    *,
    requests: Sequence[Request],
    prefills: int,
    setting: Setting,
    decoding: Setting | None = None,
) -> dict[int, Served]:
    """Serves all requests; returns the tokens that this rank computed, and when.

    Args:
        ctx: the rank.
        requests: all of them; each rank takes its own.
        prefills: how many ranks compute prompts.
        setting: of all ranks.
        decoding: of those that decode, if another one.
    """
    routes = {request.name: places(number, ctx.world_size, prefills) for number, request in enumerate(requests)}
    part = Part.of(ctx, setting if decoding is None or ctx.rank < prefills else decoding)
    ctx.barrier()
    part.clock = Wall()
    mine = [request for request in requests if ctx.rank in routes[request.name]]
    part.served = {request.name: Served(request.arrives) for request in mine}
    if ctx.rank < prefills:
        compute_prompts(part, mine, {name: to for name, (_, to) in routes.items()})
    else:
        decode(part, {request.name: request for request in mine}, {routes[request.name][0] for request in mine})
    ctx.barrier()  # a rank that has ended may still be read from
    return part.served


def compute_prompts(part: Part, requests: Sequence[Request], decoder: dict[int, int]) -> None:
    """Computes each prompt when it arrives, and hands it over.

    Raises:
        ForeignPages: the other rank has another model, dtype or page size.
        PromptTooLong: a request needs more pages than a pool has.
    """
    for request in sorted(requests, key=lambda request: request.arrives):
        part.clock.wait(request.arrives)
        prompt = Request(request.name, request.prompt, 1)
        require_room(prompt, part.pool)
        running = part.engine.start(prompt)
        assert running is not None, f"rank {part.ctx.rank}: pages are held though no prompt is computed"
        while not running.answer:
            part.engine.advance([running])
        part.note(request.name, running.answer[0])
        hand_over(part, running, decoder[request.name])
        part.pool.release(running.pages)
    for to in {decoder[request.name] for request in requests}:
        part.mailbox.post(to, "offer", {"end": True})


def hand_over(part: Part, running: Running, to: int) -> None:
    """Offers a prompt's pages to a rank, and sends them where that rank says.

    Raises:
        ForeignPages: the rank refuses the pages.
        PromptTooLong: the rank's pool can never hold them.
    """
    offer = {"name": running.request.name, "first": running.answer[0], "pages": len(running.pages)}
    part.mailbox.post(to, "offer", {"end": False, "format": format_note(part.pool.layout), **offer})
    reply = part.mailbox.take(to, "reply")
    if "refused" in reply:
        raise REFUSALS[reply["refused"]](reply["why"])
    part.transport.send(running.pages, reply["pages"], to)


def decode(part: Part, requests: dict[int, Request], sources: set[int]) -> None:
    """Takes prompts that are offered, if there are pages and slots for them, and decodes all that it has.

    Raises:
        ForeignPages: pages of another model, dtype or page size were offered.
        PromptTooLong: a request needs more pages than the pool has.
    """
    offers: dict[int, Note] = {}
    arriving: dict[int, tuple[Running, list[int]]] = {}
    while sources or part.engine.busy:
        # Who has a prompt here that is no sequence yet waits with the next one.
        for source in sorted(sources - offers.keys() - arriving.keys()):
            if part.mailbox.waiting(source, "offer"):
                offers[source] = part.mailbox.take(source, "offer")
                if offers[source]["end"]:
                    sources.remove(source)
                    del offers[source]
        for source, offer in sorted(offers.items()):
            if taken := accept(part, requests[offer["name"]], source, offer, part.engine.vacant - len(arriving)):
                arriving[source] = taken
                del offers[source]
        # What is decoded goes on while pages are on their way.
        for source in [source for source in arriving if part.transport.ready(source)]:
            running, pages = arriving.pop(source)
            part.transport.receive(pages, source)
            part.engine.adopt(running)
        if not part.engine.busy:
            time.sleep(IDLE)
            continue
        for name, token in part.engine.step():
            part.note(name, token)


def accept(part: Part, request: Request, source: int, offer: Note, vacant: int) -> tuple[Running, list[int]] | None:
    """Says where a prompt's pages may go; returns the sequence and these pages, or None if there is no room yet.

    Raises:
        ForeignPages: they are of another model, dtype or page size; the rank that offers them is told.
        PromptTooLong: the pool can never hold the request; the same.
    """
    try:
        part.pool.layout.require(noted_format(offer["format"]), f"request {request.name} of rank {source}")
        require_room(request, part.pool)
    except (ForeignPages, PromptTooLong) as refusal:
        part.mailbox.post(source, "reply", {"refused": type(refusal).__name__, "why": str(refusal)})
        raise
    needed = request.pages(part.pool.layout.page_tokens)
    if vacant < 1 or needed > part.pool.available:
        return None
    running = Running(request, part.pool.take(needed), len(request.prompt), [offer["first"]])
    pages = running.pages[: offer["pages"]]
    part.mailbox.post(source, "reply", {"pages": pages})
    return running, pages


def tokens_of(parts: Sequence[dict[int, Served]]) -> dict[int, list[int]]:
    """The whole answers, the first token from the rank that computed the prompt."""
    answers: dict[int, list[int]] = {}
    for part in parts:
        for name, served in part.items():
            answers.setdefault(name, []).extend(served.answer)
    return answers
