"""Serves the same requests with ``transformers``: by its continuous batching, and by ``generate`` on padded batches.

The weights are those of ``suites.shared.llama``, under transformers' names. Its rotary embedding turns the same pairs.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import logging
from collections import deque
from collections.abc import Iterator
from typing import Any

import torch

from suites.serving.programs.engine import Emitted, Request
from suites.shared.llama import NORM_EPSILON, ROTARY_BASE, Config, initial_weights, their_name

PATIENCE = 60.0  # seconds without a token, after which the engine is given up
POLL = 0.2  # seconds; between two looks whether its thread still runs
OLDEST = (5, 23)  # earlier ones configure their continuous batching otherwise
_INSTALL = "pip install 'pytest-gpuperf[serving]'"


class EngineStopped(RuntimeError):
    """The engine's thread has ended, or gives no token."""


def lacking() -> str | None:
    """Why transformers' continuous batching cannot run here, with what to do; None if it can."""
    try:
        version = importlib.metadata.version("transformers")
    except importlib.metadata.PackageNotFoundError:
        return f"transformers is not installed: {_INSTALL}"
    if tuple(map(int, version.split(".")[:2])) >= OLDEST:
        return None
    oldest = ".".join(map(str, OLDEST))
    return f"transformers {version} is installed, and its continuous batching is used from {oldest} on: {_INSTALL}"


def transformers_llama(
    config: Config, *, seed: int, dtype: torch.dtype, device: torch.device, longest: int = 4096
) -> Any:
    """``LlamaForCausalLM`` with the weights of ``initial_weights``; it never ends an answer by itself."""
    transformers: Any = importlib.import_module("transformers")
    made = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=config.vocabulary,
            hidden_size=config.dim,
            intermediate_size=config.hidden,
            num_hidden_layers=config.layers,
            num_attention_heads=config.heads,
            num_key_value_heads=config.kv_heads,
            head_dim=config.head_dim,
            rms_norm_eps=NORM_EPSILON,
            rope_parameters={"rope_type": "default", "rope_theta": ROTARY_BASE},
            max_position_embeddings=longest,
            attn_implementation="sdpa",
            bos_token_id=None,
            eos_token_id=None,
            pad_token_id=None,
        )
    )
    made.load_state_dict({their_name(name): value for name, value in initial_weights(config, dtype, seed).items()})
    return made.to(device=device, dtype=dtype).eval().requires_grad_(False)


class ContinuousTransformers:
    """``ContinuousBatchingManager``, which serves from a thread of its own."""

    def __init__(self, manager: Any) -> None:
        self._manager = manager
        self._answered: dict[str, int] = {}
        self._wanted: dict[str, int] = {}

    @property
    def busy(self) -> bool:
        """Whether a request has no whole answer yet."""
        return bool(self._wanted)

    def submit(self, request: Request) -> None:
        """Queues a request.

        Raises:
            EngineStopped: the manager takes no more requests.
        """
        name = str(request.name)
        taken = self._manager.add_request(
            list(request.prompt), request_id=name, max_new_tokens=request.new_tokens, streaming=True, eos_token_id=-1
        )
        if taken is None:
            raise EngineStopped(f"transformers refuses request {name}: its thread is stopping, so make a new manager")
        self._answered[name], self._wanted[name] = 0, request.new_tokens

    def step(self) -> list[Emitted]:
        """Waits for the next tokens of some request.

        Raises:
            EngineStopped: a request failed, or no token comes.
        """
        for _ in range(round(PATIENCE / POLL)):
            output = self._manager.get_result(timeout=POLL)
            if output is not None:
                return self._new(output)
            if not self._manager.is_running():
                break
        raise EngineStopped(
            f"transformers gave no token for {sorted(self._wanted)}: its thread "
            f"{'still runs' if self._manager.is_running() else 'has ended'}; read its log, and make the pool larger"
        )

    def _new(self, output: Any) -> list[Emitted]:
        name = output.request_id
        if output.error is not None:
            raise EngineStopped(f"transformers failed at request {name}: {output.error}")
        new = output.generated_tokens[self._answered[name] :]
        self._answered[name] += len(new)
        if self._answered[name] >= self._wanted[name]:
            del self._wanted[name]
        return [(int(name), token) for token in new]


@contextlib.contextmanager
def continuous(
    model: Any, *, page_tokens: int, pages: int, batch_tokens: int, slots: int
) -> Iterator[ContinuousTransformers]:
    """A running engine.

    Args:
        model: of ``transformers_llama``.
        page_tokens: tokens of a page, 4 or more.
        pages: of the pool.
        batch_tokens: the most that go through the model in one forward.
        slots: how many sequences are served at once.
    """
    transformers: Any = importlib.import_module("transformers")
    settings = transformers.ContinuousBatchingConfig(
        page_size=page_tokens,
        num_blocks=pages,
        max_batch_tokens=batch_tokens,
        max_requests_per_batch=slots,
        auto_switch_to_flash=False,
    )
    with _quiet():
        greedy = transformers.GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0)
        with model.continuous_batching_context_manager(
            generation_config=greedy, continuous_batching_config=settings, timeout=PATIENCE
        ) as manager:
            yield ContinuousTransformers(manager)


class StaticTransformers:
    """``generate`` on as many requests as there are slots. Each batch takes as long as its longest answer."""

    def __init__(self, model: Any, *, slots: int) -> None:
        self._model = model
        self._slots = slots
        self._waiting: deque[Request] = deque()

    @property
    def busy(self) -> bool:
        """Whether a request waits."""
        return bool(self._waiting)

    def submit(self, request: Request) -> None:
        """Queues a request."""
        self._waiting.append(request)

    def step(self) -> list[Emitted]:
        """Answers a whole batch."""
        batch = [self._waiting.popleft() for _ in range(min(self._slots, len(self._waiting)))]
        longest = max(len(request.prompt) for request in batch)
        padded = [[0] * (longest - len(request.prompt)) + list(request.prompt) for request in batch]
        real = [[0] * (longest - len(request.prompt)) + [1] * len(request.prompt) for request in batch]
        tokens = torch.tensor(padded, device=self._model.device)
        transformers: Any = importlib.import_module("transformers")
        greedy = transformers.GenerationConfig(
            do_sample=False, max_new_tokens=max(request.new_tokens for request in batch), pad_token_id=0
        )
        with torch.no_grad():
            whole = self._model.generate(
                tokens, attention_mask=torch.tensor(real, device=tokens.device), generation_config=greedy
            )
        answers = whole[:, longest:].tolist()
        return [
            (request.name, token)
            for request, answer in zip(batch, answers, strict=True)
            for token in answer[: request.new_tokens]
        ]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silences the engine's warnings of what is meant here: no token ends an answer, and sizes are given."""
    logger = logging.getLogger("ContinuousBatchingLogger")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)
