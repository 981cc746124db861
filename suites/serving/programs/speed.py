"""What serving is timed by: steps for races, and requests that arrive by themselves."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Sequence

import torch

from pytest_gpuperf import Context
from suites.serving.programs import hugging_face
from suites.serving.programs.disaggregated import Part, Setting, serve_apart
from suites.serving.programs.engine import Engine, PagedEngine, Request, Served, Wall, serve
from suites.serving.programs.model import PagedLlama, llama
from suites.serving.programs.pages import PageFormat, PagePool, prefix_keys
from suites.serving.programs.remote import bring, lend
from suites.serving.programs.transfer import ByMessages, ByPuts, wired
from suites.shared.bits import fill_with_bits
from suites.shared.peer_memory import allocate
from suites.shared.step import Step

BITS = torch.int32


def drawn_requests(number: int, *, prompt: int, mean: float, vocabulary: int, seed: int) -> list[Request]:
    """Prompts of one length, and answers whose lengths are spread as those of chats are: exponentially.

    The same at every call: one shuffled set of quantiles, so that a small number is no luck.
    """
    drawn = random.Random(seed)
    lengths = [max(1, round(-mean * math.log(1 - (rank + 0.5) / number))) for rank in range(number)]
    drawn.shuffle(lengths)
    return [
        Request(name, tuple(drawn.choices(range(vocabulary), k=prompt)), length) for name, length in enumerate(lengths)
    ]


def poisson(requests: Sequence[Request], *, rate: float, seed: int) -> list[Request]:
    """Gives the requests times of arrival: ``rate`` of them arrive in a second, each independent of the others."""
    drawn, now, arriving = random.Random(seed), 0.0, []
    for request in requests:
        now += drawn.expovariate(rate)
        arriving.append(dataclasses.replace(request, arrives=now))
    return arriving


def paged_engine(ctx: Context, setting: Setting, *, continuous: bool) -> PagedEngine:
    """An engine with a pool of its own, which uses no prompt's pages again."""
    model = llama(setting.config, seed=setting.seed, dtype=setting.dtype, device=ctx.device)
    pool = PagePool(PageFormat.of(model, setting.config, setting.page_tokens), setting.pages, ctx.device)
    return PagedEngine(
        PagedLlama(model, pool), slots=setting.slots, continuous=continuous, chunk=setting.chunk, reuse=False
    )


def static(ctx: Context, *, setting: Setting, requests: Sequence[Request]) -> Step[torch.Tensor]:
    """All requests at once, in batches that end with their longest answer."""
    return _all_at_once(paged_engine(ctx, setting, continuous=False), requests)


def continuous(ctx: Context, *, setting: Setting, requests: Sequence[Request]) -> Step[torch.Tensor]:
    """All requests at once; a slot that is left is filled again."""
    return _all_at_once(paged_engine(ctx, setting, continuous=True), requests)


def _all_at_once(engine: PagedEngine, requests: Sequence[Request]) -> Step[torch.Tensor]:
    def step() -> torch.Tensor:
        served = serve(engine, requests)
        return torch.tensor([token for request in requests for token in served[request.name].answer])

    return step


@dataclasses.dataclass
class Arrived:
    """What one kind of batching makes of requests."""

    saturated: dict[int, Served]
    """All of them at once."""
    poisson: dict[int, Served]
    """One after the other."""

    @property
    def tokens_per_second(self) -> float:
        """The tokens per second of all requests at once, from the first one's arrival to the last token."""
        times = [each.times[-1] for each in self.saturated.values()]
        return sum(len(each.answer) for each in self.saturated.values()) / max(times)


def arrivals(
    ctx: Context, *, kind: str, setting: Setting, requests: Sequence[Request], load: float, seed: int
) -> tuple[Arrived, Arrived]:
    """Continuous, then static batching of requests by an engine; both get the same arrivals.

    Args:
        ctx: the rank.
        kind: ``paged``, or ``transformers``.
        setting: of the engine.
        requests: served at once, then as they arrive.
        load: the share of the tokens that continuous batching gives in a second, which the arrivals ask for.
        seed: of the arrivals.

    Raises:
        ValueError: there is no such engine.
    """
    if kind == "paged":
        one, other = (paged_engine(ctx, setting, continuous=each) for each in (True, False))
        return _arrived(one, other, requests, load, seed)
    if kind != "transformers":
        raise ValueError(f"there are the engines paged and transformers, got kind={kind!r}: pass one of the two")
    model = hugging_face.transformers_llama(setting.config, seed=setting.seed, dtype=setting.dtype, device=ctx.device)
    # ``generate`` would pay for a batch's longest prompt; all prompts are of one length.
    batched = hugging_face.StaticTransformers(model, slots=setting.slots)
    with hugging_face.continuous(
        model, page_tokens=setting.page_tokens, pages=setting.pages, batch_tokens=setting.chunk, slots=setting.slots
    ) as engine:
        return _arrived(engine, batched, requests, load, seed)


def _arrived(
    one: Engine, other: Engine, requests: Sequence[Request], load: float, seed: int
) -> tuple[Arrived, Arrived]:
    def at_once(engine: Engine) -> dict[int, Served]:
        serve(engine, requests[:2], Wall())  # what is made at the first call is made here
        return serve(engine, requests, Wall())

    saturated = at_once(one)
    capacity = Arrived(saturated, {}).tokens_per_second
    mean = sum(request.new_tokens for request in requests) / len(requests)
    coming = poisson(requests, rate=load * capacity / mean, seed=seed)
    found = Arrived(saturated, serve(one, coming, Wall()))
    return found, Arrived(at_once(other), serve(other, coming, Wall()))


def beside_long_prompts(
    ctx: Context, *, setting: Setting, chats: Sequence[Request], prompts: Sequence[Request]
) -> tuple[dict[int, Served], dict[int, Served]]:
    """Long prompts among answers that are being decoded: on ranks apart, then each rank by itself with its own share.

    Returns both. Each rank that computes prompts has one that decodes; the numbers of ``chats`` and ``prompts`` are
    multiples of such pairs.
    """
    pairs = ctx.world_size // 2
    both = [*chats, *prompts]
    serve_apart(ctx, requests=_soon(both[:: max(1, len(both) // 2)]), prefills=pairs, setting=setting)
    apart = serve_apart(ctx, requests=both, prefills=pairs, setting=setting)
    engine = paged_engine(ctx, setting, continuous=True)
    mine = [request for number, request in enumerate(both) if number % pairs == ctx.rank % pairs]
    serve(engine, _soon(mine[:: max(1, len(mine) // 2)]), Wall())
    return apart, serve(engine, mine, Wall())


def _soon(requests: Sequence[Request]) -> list[Request]:
    """Copies of the requests that arrive at once and get only a few tokens."""
    return [dataclasses.replace(request, arrives=0.0, new_tokens=2) for request in requests]


def partner(ctx: Context) -> tuple[int, int] | None:
    """The pair of sender and receiver that a rank is in; None for the last of an odd number."""
    first = ctx.rank // 2 * 2
    return (first, first + 1) if first + 1 < ctx.world_size else None


def order_of(pages: int, multiple: int) -> list[int]:
    """All pages, hardly one of them beside the one before."""
    step = next(step for step in range(multiple * pages // 7 + 2, 3 * pages + 3) if math.gcd(step, pages) == 1)
    return [number * step % pages for number in range(pages)]


def sent_pages(rank: int, pages: int, page_bytes: int, device: torch.device) -> torch.Tensor:
    """What a rank's pages hold: random bits."""
    flat = torch.empty(pages * page_bytes // BITS.itemsize, dtype=BITS, device=device)
    fill_with_bits(flat, stream=rank)
    return flat.view(pages, -1)


def plain_copy(ctx: Context, *, pages: int, page_bytes: int) -> Step[torch.Tensor]:
    """One copy of all bytes into the next rank's memory. They lie as pages arrive, so that both ends are alike."""
    pair, shape = partner(ctx), (pages, page_bytes // BITS.itemsize)
    memory = allocate(ctx, pages * page_bytes)
    here = memory.buffer(ctx.rank, shape, BITS).zero_()
    source = torch.empty(shape, dtype=BITS, device=ctx.device)
    source[order_of(pages, 2)] = sent_pages(ctx.rank, pages, page_bytes, ctx.device)[order_of(pages, 1)]
    memory.barrier()
    there = memory.buffer(pair[1], shape, BITS) if pair is not None and ctx.rank == pair[0] else None

    def step() -> torch.Tensor:
        if there is not None:
            there.copy_(source)
        memory.barrier()
        return here if there is None else here[:0]

    return step


def pages_by_puts(ctx: Context, *, pages: int, page_bytes: int) -> Step[torch.Tensor]:
    """Kernels write all pages, each from its place to its place."""
    pool, _, way = wired(ctx, _bits(page_bytes), pages, way="puts")
    assert isinstance(way, ByPuts)
    pair, ways = partner(ctx), (order_of(pages, 1), order_of(pages, 2))
    sends = pair is not None and ctx.rank == pair[0]
    if sends:
        pool.kv.copy_(sent_pages(ctx.rank, pages, page_bytes, ctx.device))

    def step() -> torch.Tensor:
        if pair is not None and sends:
            way.copy(*ways, pair[1])
        way.memory.barrier()
        return pool.kv[:0] if sends else pool.kv

    return step


def pages_by_messages(ctx: Context, *, pages: int, page_bytes: int) -> Step[torch.Tensor]:
    """A message for each page, by NCCL or gloo."""
    pool, _, way = wired(ctx, _bits(page_bytes), pages, way="messages")
    assert isinstance(way, ByMessages)
    pair, ours, theirs = partner(ctx), order_of(pages, 1), order_of(pages, 2)
    sends = pair is not None and ctx.rank == pair[0]
    if sends:
        pool.kv.copy_(sent_pages(ctx.rank, pages, page_bytes, ctx.device))

    def step() -> torch.Tensor:
        if pair is not None and sends:
            way.put(ours, pair[1])
        elif pair is not None:
            way.get(theirs, pair[0])
        return pool.kv[:0] if sends else pool.kv

    return step


def _bits(page_bytes: int) -> PageFormat:
    return PageFormat((page_bytes // BITS.itemsize,), BITS, "bits")


def verify_pages(ctx: Context, arrived: torch.Tensor, steps: int, *, page_bytes: int) -> None:
    """Each page is where it belongs, with the sender's bits; then all are wiped, so that the next step brings them."""
    ctx.barrier()
    pair = partner(ctx)
    if pair is not None and ctx.rank == pair[1]:
        pages = len(arrived)
        expected = torch.empty_like(arrived)
        expected[order_of(pages, 2)] = sent_pages(pair[0], pages, page_bytes, arrived.device)[order_of(pages, 1)]
        wrong = int((arrived != expected).any(1).sum())
        assert not wrong, f"rank {ctx.rank}: {wrong} of {pages} pages are wrong"
        arrived.zero_()
    ctx.barrier()


def prefix_computed(ctx: Context, *, setting: Setting, request: Request) -> Step[torch.Tensor]:
    """The last rank computes a whole prompt; the others have nothing to do."""
    return _first_token(ctx, setting, request, fetches=False)


def prefix_fetched(ctx: Context, *, setting: Setting, request: Request) -> Step[torch.Tensor]:
    """The last rank gets the prompt's full pages from rank 0, and computes the rest."""
    return _first_token(ctx, setting, request, fetches=True)


def _first_token(ctx: Context, setting: Setting, request: Request, *, fetches: bool) -> Step[torch.Tensor]:
    part, last = Part.of(ctx, setting), ctx.world_size - 1
    keys = prefix_keys(request.prompt, setting.page_tokens)
    if ctx.rank == 0 and fetches:
        serve(part.engine, [request])
    ctx.barrier()

    def step() -> torch.Tensor:
        if ctx.rank < last:
            if fetches:
                lend(part, last)
            return torch.zeros(1, dtype=torch.int64)
        if fetches:
            local, fetched, _ = bring(part, keys)
            assert (local, fetched) == (0, len(keys)), f"{local} pages were here, {fetched} of {len(keys)} came"
        before = part.engine.reused
        answer = serve(part.engine, [request])[request.name].answer
        reused = part.engine.reused - before
        assert reused == (len(keys) if fetches else 0), f"{reused} of {len(keys)} pages were used again"
        for key in keys:
            part.pool.drop(key)  # the next step finds nothing here
        return torch.tensor(answer)

    return step


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that so many percent of all do not exceed.

    Raises:
        ValueError: there are no values.
    """
    if not values:
        raise ValueError(f"there is no {percent:g}th percentile of nothing: measure at least one value")
    return sorted(values)[max(0, math.ceil(len(values) * percent / 100) - 1)]
