"""Faults of the subject serving."""

from __future__ import annotations

from benchmarks.mutants.fault import Fault

PAGES, MODEL, ENGINE, TRANSFER, APART, REMOTE, TRANSFORMERS, SPEED = (
    f"suites.serving.programs.{name}"
    for name in ("pages", "model", "engine", "transfer", "disaggregated", "remote", "hugging_face", "speed")
)

FAULTS: tuple[Fault, ...] = (
    # The pool.
    Fault(
        name="eviction of a page in use",
        module=PAGES,
        old="            victim = next(page for page in self._kept.values() if not self._holders[page])\n",
        new="            victim = next(iter(self._kept.values()))\n"
        "            self._free.extend([victim] * bool(self._holders[victim]))\n",
    ),
    Fault(
        name="eviction of the page that was used last",
        module=PAGES,
        old="for page in self._kept.values() if",
        new="for page in reversed(self._kept.values()) if",
    ),
    Fault(
        name="a page that is kept and free at once",
        module=PAGES,
        old="if not self._holders[page] and page not in self._key_of:",
        new="if not self._holders[page]:",
    ),
    Fault(
        name="a page that is found and does not count as used",
        module=PAGES,
        old="        self._kept.move_to_end(key)\n",
        new="",
    ),
    Fault(
        name="an eviction that nobody remembers",
        module=PAGES,
        old="            self._evicted.add(self._key_of[victim])\n",
        new="",
    ),
    Fault(
        name="a key of a page's own tokens alone",
        module=PAGES,
        old="        digest.update(repr(list(",
        new="        digest = hashlib.sha256(repr(list(",
    ),
    Fault(
        name="a prompt's last token in a page that is found",
        module=PAGES,
        old="range(0, len(prompt) - page_tokens, page_tokens)",
        new="range(0, len(prompt) - page_tokens + 1, page_tokens)",
    ),
    Fault(
        name="a stale page that is a hit",
        module=PAGES,
        old="Found.HIT if model == self.layout.model else Found.STALE",
        new="Found.HIT",
    ),
    Fault(
        name="a fingerprint of the weights' shapes alone",
        module=PAGES,
        old="        digest.update(weight.cpu().contiguous().view(torch.uint8).numpy().tobytes())\n",
        new="",
    ),
    # The model.
    Fault(
        name="a wrong slot of a page",
        module=MODEL,
        old="self.slots = self.places % self._page_tokens",
        new="self.slots = (self.places + 1) % self._page_tokens",
    ),
    Fault(
        name="positions off by one behind the eighth token",
        module=MODEL,
        old="        return self._batch.places\n",
        new="        return self._batch.places + (self._batch.places > 7)\n",
    ),
    Fault(
        name="a token that does not see itself",
        module=MODEL,
        old="(seen <= self.places[rows]",
        new="(seen < self.places[rows]",
    ),
    Fault(
        name="a mask that shows what another sequence left in a page",
        module=MODEL,
        old="(seen <= self.places[rows].unsqueeze(-1))",
        new="(seen // self._page_tokens <= self.places[rows].unsqueeze(-1) // self._page_tokens)",
    ),
    Fault(
        name="the first request's keys and values for all",
        module=MODEL,
        old="[:width] for _, span in members])",
        new="[:width] for _, span in members[:1] * len(members)])",
    ),
    Fault(
        name="one layer's keys for all layers",
        module=MODEL,
        old="pool.kv[:, layer, 0], pool.kv[:, layer, 1]",
        new="pool.kv[:, 0, 0], pool.kv[:, layer, 1]",
    ),
    Fault(
        name="the next token of another place in the row",
        module=MODEL,
        old="self.last = self._there(firsts[1:]) - 1",
        new="self.last = self._there(firsts[:-1])",
    ),
    # Engines.
    Fault(
        name="a slot that stays empty for a step",
        module=ENGINE,
        old="        vacant = self.vacant if self._continuous or not self._running else 0\n",
        new="        vacant = min(1, self.vacant) if self._continuous or not self._running else 0\n",
    ),
    Fault(
        name="static batching that fills slots at once",
        module=ENGINE,
        old="if self._continuous or not self._running else 0",
        new="if self._continuous or self._running is not None else 0",
    ),
    Fault(
        name="a page that is lost when an answer is whole",
        module=ENGINE,
        old="        for running in self._running:\n            if running.finished:\n"
        "                self.model.pool.release(running.pages)\n",
        new="        for running in self._running:\n            if running.finished:\n"
        "                self.model.pool.release(running.pages[1:])\n",
    ),
    Fault(
        name="a prefix one token longer than its pages",
        module=ENGINE,
        old="len(shared) * page_tokens)",
        new="len(shared) * page_tokens + bool(shared))",
    ),
    Fault(
        name="pages that are kept under the keys of those behind them",
        module=ENGINE,
        old="running.pages, strict=False):\n                    pool.keep(key, page)",
        new="running.pages[1:], strict=False):\n                    pool.keep(key, page)",
    ),
    # Pages that go to another rank.
    Fault(
        name="pages that are sent in the pool's order",
        module=TRANSFER,
        old="dist.isend, self._pool.kv[page], to) for page in pages]",
        new="dist.isend, self._pool.kv[page], to) for page in sorted(pages)]",
    ),
    Fault(
        name="messages that nobody waits for",
        module=TRANSFER,
        old="            work.wait()\n",
        new="            work.is_completed()\n",
    ),
    Fault(
        name="pages that are announced before they are copied",
        module=TRANSFER,
        old="""        self.copy(pages, there, to)
        if self._ctx.device.type == "cuda":
            torch.cuda.current_stream(self._ctx.device).synchronize()
        self._mailbox.post(to, "arrived", {"pages": list(there)})
""",
        new="""        self._mailbox.post(to, "arrived", {"pages": list(there)})
        self.copy(pages, there, to)
        if self._ctx.device.type == "cuda":
            torch.cuda.current_stream(self._ctx.device).synchronize()
""",
    ),
    Fault(
        name="pages that are put in the order of their numbers there",
        module=TRANSFER,
        old="for page in there], [",
        new="for page in sorted(there)], [",
    ),
    Fault(
        name="the last page of a put, lost",
        module=TRANSFER,
        old="            torch._foreach_copy_(",
        new="            pages, there = pages[:-1] or pages, there[:-1] or there\n            torch._foreach_copy_(",
    ),
    Fault(
        name="an answer that goes on from another first token",
        module=APART,
        old='len(request.prompt), [offer["first"]])',
        new="len(request.prompt), [request.prompt[-1]])",
    ),
    Fault(
        name="pages of another model that are not refused",
        module=APART,
        old="        part.pool.layout.require(noted_format(",
        new="        (lambda *_: None)(noted_format(",
    ),
    Fault(
        name="a prompt's next pages while the former are on their way",
        module=APART,
        old="sources - offers.keys() - arriving.keys()",
        new="sources - offers.keys()",
    ),
    Fault(
        name="a decoder that leaves before the last pages come",
        module=APART,
        old="    while sources or part.engine.busy:",
        new="    while sources:",
    ),
    # Prefixes of other ranks.
    Fault(
        name="another rank's stale page that is a hit",
        module=REMOTE,
        old="Found.HIT if model == pool.layout.model else Found.STALE",
        new="Found.HIT",
    ),
    Fault(
        name="pages that are fetched and not kept",
        module=REMOTE,
        old="        pool.keep(key, page)\n",
        new="        assert key and page >= 0\n",
    ),
    Fault(
        name="pages fetched in the order of another rank's pool",
        module=REMOTE,
        old='[held[key] for key in fetch["keys"]]',
        new='sorted(held[key] for key in fetch["keys"])',
    ),
    Fault(
        name="a page behind one that nobody has",
        module=REMOTE,
        old="if states[key][of] is not Found.HIT",
        new="if states[key][of] is Found.MISS",
    ),
    # The other engine, and what speed is measured by.
    Fault(
        name="padding that is attended to",
        module=TRANSFORMERS,
        old="real = [[0] * (longest",
        new="real = [[1] * (longest",
        needs="transformers",
    ),
    Fault(
        name="another rotary base",
        module=TRANSFORMERS,
        old='"rope_theta": ROTARY_BASE',
        new='"rope_theta": 500_000.0',
        needs="transformers",
    ),
    Fault(
        name="a plain copy that leaves a page out",
        module=SPEED,
        old="            there.copy_(source)\n",
        new="            there[1:].copy_(source[1:])\n",
    ),
    Fault(
        name="arrivals that are spread evenly",
        module=SPEED,
        old="drawn.expovariate(rate)",
        new="drawn.uniform(0, 2 / rate)",
    ),
    Fault(
        name="a percentile that is rounded down",
        module=SPEED,
        old="math.ceil(len(values) * percent / 100) - 1",
        new="math.floor(len(values) * percent / 100) - 1",
    ),
    Fault(
        name="a fingerprint of each weight's beginning",
        module="suites.serving.programs.pages",
        old="weight.cpu().contiguous().view(torch.uint8).numpy().tobytes()",
        new="weight.cpu().contiguous().view(torch.uint8).numpy().tobytes()[:64]",
    ),
    Fault(
        name="shared pages that are held after new ones are taken",
        module="suites.serving.programs.engine",
        old="        pool.hold(shared)\n        wanted = request.pages(page_tokens) - len(shared)\n"
        "        if wanted > pool.available:\n            pool.release(shared)\n"
        "            return None\n        self.reused += len(shared)\n"
        "        return Running(request, shared + pool.take(wanted), len(shared) * page_tokens)",
        new="        wanted = request.pages(page_tokens) - len(shared)\n"
        "        if wanted > pool.available:\n            return None\n"
        "        self.reused += len(shared)\n        taken = pool.take(wanted)\n"
        "        pool.hold(shared)\n"
        "        return Running(request, shared + taken, len(shared) * page_tokens)",
    ),
    Fault(
        name="pages that are offered before the prompt is through",
        module="suites.serving.programs.engine",
        old="            if running.seen < len(prompt):\n                continue\n"
        "            if not running.answer and self._reuse:\n"
        "                for key, page in zip(prefix_keys(prompt, pool.layout.page_tokens), "
        "running.pages, strict=False):\n                    pool.keep(key, page)\n",
        new="            if not running.answer and self._reuse:\n"
        "                for key, page in zip(prefix_keys(prompt, pool.layout.page_tokens), "
        "running.pages, strict=False):\n                    pool.keep(key, page)\n"
        "            if running.seen < len(prompt):\n                continue\n",
    ),
    Fault(
        name="tokens that are noted before the step is counted",
        module="suites.serving.programs.engine",
        old="        emitted = engine.step()\n        clock.stepped()\n"
        "        for name, token in emitted:\n            served[name].answer.append(token)\n"
        "            served[name].times.append(clock.now())\n",
        new="        emitted = engine.step()\n        for name, token in emitted:\n"
        "            served[name].answer.append(token)\n"
        "            served[name].times.append(clock.now())\n        clock.stepped()\n",
    ),
    Fault(
        name="a percentile one place too high",
        module="suites.serving.programs.speed",
        old="max(0, math.ceil(len(values) * percent / 100) - 1)",
        new="min(len(values) - 1, int(len(values) * percent / 100))",
    ),
    Fault(
        name="a clock that starts while ranks still build their models",
        module="suites.serving.programs.disaggregated",
        old="""    ctx.barrier()
    part.clock = Wall()""",
        new="    ctx.barrier()",
    ),
    Fault(
        name="requests that arrive at equal distances",
        module="suites.serving.programs.speed",
        old="now += drawn.expovariate(rate)",
        new="now += 1 / rate",
    ),
    Fault(
        name="stale pages are found and not dropped",
        module=ENGINE,
        old="            pool.drop(key)  # or the page that is computed now would not be kept in its place\n",
        new="            pass\n",
    ),
    Fault(
        name="the first stale page of a prompt alone is dropped",
        module=ENGINE,
        old="        whole = whole and found is Found.HIT\n",
        new="        whole = whole and found is Found.HIT\n        if found is Found.STALE:\n            break\n",
    ),
    Fault(
        name="keys of pages join tokens without anything between them",
        module="suites.serving.programs.pages",
        old="digest.update(repr(list(prompt[start : start + page_tokens])).encode())",
        new='digest.update("".join(map(str, prompt[start : start + page_tokens])).encode())',
    ),
    Fault(
        name="prompts on their way take no slot",
        module="suites.serving.programs.disaggregated",
        old="part.engine.vacant - len(arriving)",
        new="part.engine.vacant",
    ),
    Fault(
        name="a prefix with a gap",
        module="suites.serving.programs.engine",
        old="        if whole:\n            pages.append(page)",
        new="        if found is Found.HIT:\n            pages.append(page)",
    ),
    Fault(
        name="a send that is announced again after it was received",
        module="suites.serving.programs.transfer",
        old='        self._mailbox.take(source, "sending")\n        self.get(pages, source)',
        new="        self.get(pages, source)",
    ),
    Fault(
        name="pages of former weights that stay behind a missing one",
        module="suites.serving.programs.engine",
        old="        if whole:\n            pages.append(page)\n",
        new="        if not whole:\n            break\n        pages.append(page)\n",
    ),
    Fault(
        name="pages that are not wiped between steps",
        module="suites.serving.programs.speed",
        old="        arrived.zero_()\n",
        new="",
    ),
    Fault(
        name="a prefix that is computed once and found in later steps",
        module="suites.serving.programs.speed",
        old="        for key in keys:\n            part.pool.drop(key)  # the next step finds nothing here\n",
        new="        for key in keys if fetches else ():\n"
        "            part.pool.drop(key)  # the next step finds nothing here\n",
    ),
    Fault(
        name="page keys that forget the pages before",
        module="suites.serving.programs.pages",
        old=(
            "    digest, keys = hashlib.sha256(), []\n"
            "    for start in range(0, len(prompt) - page_tokens, page_tokens):\n"
            "        digest.update(repr(list(prompt[start : start + page_tokens])).encode())\n"
        ),
        new=(
            "    keys = []\n"
            "    for start in range(0, len(prompt) - page_tokens, page_tokens):\n"
            "        digest = hashlib.sha256(repr(list(prompt[start : start + page_tokens])).encode())\n"
        ),
    ),
    Fault(
        name="latencies that begin when the engine takes a request",
        module="suites.serving.programs.engine",
        old="            engine.submit(coming.popleft())\n",
        new=(
            "            request = coming.popleft()\n"
            "            served[request.name].arrived = clock.now()\n"
            "            engine.submit(request)\n"
        ),
    ),
    Fault(
        name="slots of prompts on their way counted as vacant",
        module="suites.serving.programs.disaggregated",
        old="offer, part.engine.vacant - len(arriving)):\n",
        new="offer, part.engine.vacant):\n",
    ),
    Fault(
        name="a page's key knows its own tokens alone",
        module="suites.serving.programs.pages",
        old="        digest.update(repr(list(prompt[start : start + page_tokens])).encode())\n",
        new="        digest = hashlib.sha256(repr(list(prompt[start : start + page_tokens])).encode())\n",
    ),
    Fault(
        name="pages behind a gap of a prefix are used",
        module="suites.serving.programs.engine",
        old="        if whole:\n",
        new="        if found is Found.HIT:\n",
    ),
)
