"""How fast requests are served: batching, arrivals, prompts apart, pages over the link, and prefixes of other ranks."""

from __future__ import annotations

import functools
import itertools
import statistics
from collections.abc import Callable, Sequence

import pytest
import torch

from pytest_gpuperf import Context, Metric, MiB, Perf, Ranks
from suites.serving.programs import hugging_face, speed
from suites.serving.programs.disaggregated import Setting, tokens_of
from suites.serving.programs.engine import Request, Served
from suites.serving.reference import CONFIG, DTYPE, answers_of, assert_answered, assert_goes_on, most_speedup
from suites.shared.llama import Config
from suites.shared.step import Step

pytestmark = pytest.mark.perf

MODEL = Config(layers=2, heads=8, kv_heads=2, head_dim=64, hidden=1408, vocabulary=256)
"""6 million weights. In float64, so that answers are the same in each batch: what is compared is the serving."""
PAGE_BYTES = 2 * MiB
"""16 tokens of 32 layers, 8 heads of 128 features, keys and values in bfloat16."""
LOAD = 0.6
"""Share of what continuous batching can do that arrives."""
BANDWIDTH = 0.85
"""Share of a plain copy's bandwidth that pages reach at least."""
STILL = 1.5
"""How many times longer the 99th percentile between two tokens may be while puts bring long prompts from elsewhere."""


def setting_of(perf: Perf, *, pages: int, slots: int, way: str = "messages") -> Setting:
    """A model that a GPU takes a millisecond for; the suites' smallest with --smoke."""
    config = CONFIG if perf.smoke else MODEL
    tokens, chunk = (4, 8) if perf.smoke else (16, 512)
    return Setting(config, 1, tokens, pages, slots=slots, chunk=chunk, dtype=DTYPE, way=way)


def vocabulary(perf: Perf) -> int:
    """Tokens of the model's."""
    return (CONFIG if perf.smoke else MODEL).vocabulary


@pytest.mark.ranks(1)
@pytest.mark.depends("host")
def test_batching(perf: Perf) -> None:
    slots, number = perf.sized(4, smoke=2), perf.sized(8, smoke=4)
    requests = speed.drawn_requests(
        number, prompt=perf.sized(32, smoke=3), mean=perf.sized(6.0, smoke=2.0), vocabulary=vocabulary(perf), seed=1
    )
    setting = setting_of(perf, pages=perf.sized(512, smoke=64), slots=slots)
    lengths = [request.new_tokens for request in requests]
    bound = most_speedup(lengths, slots)

    def answered(ctx: Context, output: torch.Tensor, steps: int) -> None:
        tokens = iter(output.tolist())
        answers = {request.name: [next(tokens) for _ in range(request.new_tokens)] for request in requests}
        assert_answered(requests, answers, seed=setting.seed, config=setting.config, device=ctx.device)

    pair = perf.compare(
        baseline=speed.static,
        optimized=speed.continuous,
        verify=answered,
        setting=setting,
        requests=requests,
    )
    perf.check(speedup=pair.speedup, tokens=pair.optimized.rate(sum(lengths), "token/s"))
    perf.show(bound=Metric(bound, "x", "higher"), static=pair.baseline.rate(sum(lengths), "token/s"))


def answered_right(ctx: Context, setting: Setting, requests: Sequence[Request], answers: dict[int, list[int]]) -> None:
    """The answers are those of each sequence by itself; each rank looks at some of them, on its own device."""
    assert len(answers) == len(requests)
    mine = requests[ctx.rank :: ctx.world_size]
    own = {request.name: answers[request.name] for request in mine}
    assert_answered(mine, own, seed=setting.seed, config=setting.config, device=ctx.device)


def seconds(values: Sequence[float], percent: float) -> Metric:
    """A percentile of times that the host has taken."""
    return Metric(speed.percentile(values, percent), "s", "lower", samples=len(values), clock="host")


@pytest.mark.ranks(1)
@pytest.mark.parametrize("kind", ["paged", "transformers"])
@pytest.mark.depends("host")
def test_arrivals(perf: Perf, ranks: Ranks, kind: str) -> None:
    """Tokens per second if all requests are there, and latency if they arrive one by one."""
    if kind == "transformers" and (lacking := hugging_face.lacking()) is not None:
        pytest.skip(lacking)
    slots, number = perf.sized(8, smoke=2), perf.sized(40, smoke=4)
    requests = speed.drawn_requests(
        number, prompt=perf.sized(64, smoke=3), mean=perf.sized(8.0, smoke=2.0), vocabulary=vocabulary(perf), seed=2
    )
    setting = setting_of(perf, pages=perf.sized(512, smoke=64), slots=slots)
    ((continuous, static),) = ranks.run(
        speed.arrivals, kind=kind, setting=setting, requests=requests, load=LOAD, seed=3
    )
    for served in (continuous.saturated, continuous.poisson, static.saturated, static.poisson):
        ranks.run(answered_right, setting, requests, answers_of(served))
    rate, other = (Metric(each.tokens_per_second, "token/s", "higher", clock="host") for each in (continuous, static))
    ours, theirs = ([one.latency for one in each.poisson.values()] for each in (continuous, static))
    perf.check(tokens=rate)
    # How long requests wait in a queue depends steeply on the load, and the load on what this launch could serve.
    perf.show(p50=seconds(ours, 50), p99=seconds(ours, 99))
    perf.show(static_tokens=other, static_p50=seconds(theirs, 50), static_p99=seconds(theirs, 99))


def times_of(served: Sequence[dict[int, Served]], requests: Sequence[Request]) -> list[list[float]]:
    """When the tokens of each request came, whichever rank computed them."""
    return [
        sorted(time for part in served if request.name in part for time in part[request.name].times)
        for request in requests
    ]


def between(times: Sequence[Sequence[float]], inside: Callable[[float], bool]) -> list[float]:
    """Seconds from each token to the next, of the tokens at such times; the first one comes from another rank."""
    pairs = [pair for of_one in times for pair in itertools.pairwise(of_one[1:])]
    return [after - before for before, after in pairs if inside(after)]


def around_prompts(
    served: Sequence[dict[int, Served]], chats: Sequence[Request], prompts: Sequence[Request]
) -> tuple[list[float], list[float]]:
    """Return the seconds between two tokens of chats while no long prompt is served, and while some are."""
    first = min(request.arrives for request in prompts)
    last = max(times[-1] for times in times_of(served, prompts))
    times = times_of(served, chats)
    return (
        between(times, lambda time: not first <= time <= last),
        between(times, lambda time: first <= time <= last),
    )


@pytest.mark.ranks(2, 4, 8, largest=True)
@pytest.mark.parametrize("way", ["messages", "puts"])
@pytest.mark.depends("host")
def test_prompts_apart(perf: Perf, ranks: Ranks, way: str) -> None:
    """Answers are decoded while long prompts are computed: by other ranks, and by the same ones."""
    pairs, long, tokens = perf.world_size // 2, perf.sized(4096, smoke=20), perf.sized(240, smoke=12)
    chats = speed.drawn_requests(4 * pairs, prompt=16, mean=1.0, vocabulary=vocabulary(perf), seed=4)
    chats = [Request(each.name, each.prompt, tokens) for each in chats]
    prompts = [
        Request(each.name + len(chats), each.prompt, 2, arrives=perf.sized(0.3, smoke=0.0) + 0.1 * (each.name // pairs))
        for each in speed.drawn_requests(4 * pairs, prompt=long, mean=1.0, vocabulary=vocabulary(perf), seed=5)
    ]
    setting = setting_of(perf, pages=perf.sized(4096, smoke=64), slots=8, way=way)
    serve = functools.partial(ranks.run, speed.beside_long_prompts, setting=setting, chats=chats, prompts=prompts)
    found = serve()
    apart, together = ([each[arm] for each in found] for arm in (0, 1))
    ranks.run(answered_right, setting, [*chats, *prompts], tokens_of(apart))
    for served in (together[:pairs], together[pairs:]):
        ranks.run(answered_right, setting, [*chats, *prompts], tokens_of(served))

    quiet, loaded = around_prompts(apart, chats, prompts)
    _, colocated = around_prompts(together[:pairs], chats, prompts)
    waits = [times[0] - request.arrives for request, times in zip(prompts, times_of(apart, prompts), strict=True)]
    handed = [times[1] - times[0] for times in times_of(apart, prompts)]
    perf.check(
        first_token=Metric(statistics.median(waits), "s", "lower", samples=len(waits), clock="host"),
        between_tokens=seconds(loaded or quiet, 99),
    )
    perf.show(handed_over=Metric(statistics.median(handed), "s", "lower", samples=len(handed), clock="host"))
    if not perf.smoke:
        longer = speed.percentile(loaded, 99) / speed.percentile(quiet, 99)
        perf.show(longer=Metric(longer, "x", "lower"), quiet=seconds(quiet, 99), colocated=seconds(colocated, 99))
        if way == "puts":  # NCCL's kernels, which move messages, share the GPU that decodes: nothing is asked of them
            assert_goes_on(STILL, quiet, loaded, lambda: around_prompts([each[0] for each in serve()], chats, prompts))


@pytest.mark.ranks(2, 4, 8, largest=True)
@pytest.mark.parametrize("nbytes", [64 * MiB, 512 * MiB], ids=["64MiB", "512MiB"])
@pytest.mark.parametrize("way", [speed.pages_by_puts, speed.pages_by_messages], ids=["puts", "messages"])
def test_pages_over_the_link(perf: Perf, way: Callable[..., Step[torch.Tensor]], nbytes: int) -> None:
    """Against one plain copy of as many bytes. NCCL copies through buffers of its own: nothing is asked of messages."""
    page_bytes = perf.sized(PAGE_BYTES, smoke=64)
    pages = perf.sized(nbytes // PAGE_BYTES, smoke=9)
    pair = perf.compare(
        baseline=speed.plain_copy,
        optimized=way,
        at_least=BANDWIDTH if way is speed.pages_by_puts else None,
        verify=functools.partial(speed.verify_pages, page_bytes=page_bytes),
        pages=pages,
        page_bytes=page_bytes,
    )
    link = pair.optimized.link
    sent = pages * page_bytes
    perf.check(
        speedup=pair.speedup, bandwidth=pair.optimized.rate(sent, "B/s", limit=link.line_rate, limit_name=link.name)
    )
    perf.show(plain_copy=pair.baseline.rate(sent, "B/s"))


@pytest.mark.ranks(2, 4, 8, largest=True)
@pytest.mark.parametrize("way", ["messages", "puts"])
@pytest.mark.depends("host")
def test_prefix_of_another_rank(perf: Perf, way: str) -> None:
    """The first token after a long prefix: its pages are fetched, or computed again."""
    (request,) = speed.drawn_requests(
        1, prompt=perf.sized(2049, smoke=17), mean=1.0, vocabulary=vocabulary(perf), seed=6
    )
    setting = setting_of(perf, pages=perf.sized(512, smoke=8), slots=1, way=way)

    def answered(ctx: Context, output: torch.Tensor, steps: int) -> None:
        if ctx.rank == ctx.world_size - 1:
            answers = {request.name: output.tolist()}
            assert_answered([request], answers, seed=setting.seed, config=setting.config, device=ctx.device)

    pair = perf.compare(
        baseline=speed.prefix_computed,
        optimized=speed.prefix_fetched,
        verify=answered,
        setting=setting,
        request=request,
    )
    perf.check(speedup=pair.speedup, first_token=pair.optimized.time)
    perf.show(computed=pair.baseline.time)
