"""A small Llama-shaped model (arXiv 2302.13971, 2307.09288), whole or one pipeline stage of it.

RMS norms, rotary position embedding, grouped queries, SwiGLU. B sequences of S tokens; H heads of D features,
of which G are heads of keys and values; F hidden features of the feed-forward layer, V tokens in the vocabulary.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch
from torch import nn
from torch.nn import functional
from torch.nn.attention.bias import causal_lower_right

from suites.shared.step import Tensors

NORM_EPSILON = 1e-5  # as Llama 2 and 3 have it
ROTARY_BASE = 10000.0  # RoFormer (arXiv 2104.09864), section 3.2.2


class Config(NamedTuple):
    """The model's sizes."""

    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 4
    hidden: int = 12
    vocabulary: int = 16

    @property
    def dim(self) -> int:
        """The features of a token."""
        return self.heads * self.head_dim


def initial_weights(config: Config, dtype: torch.dtype, seed: int) -> Tensors:
    """Weights by name, on the CPU: the same wherever they are drawn, so that nobody needs to send them."""
    generator = torch.Generator().manual_seed(seed)
    kv_dim = config.kv_heads * config.head_dim

    def matrix(outputs: int, inputs: int) -> torch.Tensor:
        return torch.randn(outputs, inputs, dtype=torch.float64, generator=generator) / math.sqrt(inputs)

    def norm() -> torch.Tensor:
        # Not ones, which would hide a norm that is left out of its weight.
        return 1 + torch.randn(config.dim, dtype=torch.float64, generator=generator) / 4

    weights = {"embedding.weight": matrix(config.vocabulary, config.dim) * math.sqrt(config.dim)}
    for index in range(config.layers):
        layer = {
            "attention_norm.weight": norm(),
            "attention.query.weight": matrix(config.dim, config.dim),
            "attention.key.weight": matrix(kv_dim, config.dim),
            "attention.value.weight": matrix(kv_dim, config.dim),
            "attention.output.weight": matrix(config.dim, config.dim),
            "feed_forward_norm.weight": norm(),
            "feed_forward.gate.weight": matrix(config.hidden, config.dim),
            "feed_forward.up.weight": matrix(config.hidden, config.dim),
            "feed_forward.down.weight": matrix(config.dim, config.hidden),
        }
        weights |= {f"layers.{index}.{name}": value for name, value in layer.items()}
    weights |= {"norm.weight": norm(), "head.weight": matrix(config.vocabulary, config.dim)}
    return {name: value.to(dtype) for name, value in weights.items()}


def load_initial_weights(model: Llama, config: Config, seed: int) -> None:
    """Fills a stage with its share of ``initial_weights``."""
    weights = initial_weights(config, next(model.parameters()).dtype, seed)
    model.load_state_dict({name: weights[name] for name in model.state_dict()})


def draw_on_device(model: Llama, config: Config, seed: int) -> None:
    """Fills a stage with weights that depend on their names and the seed alone; quick for large models."""
    with torch.no_grad():
        for name, weight in model.named_parameters():
            generator = torch.Generator(weight.device).manual_seed(seed + zlib.crc32(name.encode()))
            if weight.dim() == 1:
                weight.fill_(1)
            else:
                weight.normal_(std=1 / math.sqrt(weight.shape[1]), generator=generator)


def flop_of_step(config: Config, sequences: int, length: int) -> float:
    """Floating-point operations of forward and backward, of all ranks, without what is computed twice.

    2 a weight and token in the forward, 4 in the backward, of all weights but the embedding's, which is a lookup.
    Causal attention has two products of S x S / 2 x D a head (arXiv 2205.05198, appendix A, halved for the mask).
    """
    kv_dim = config.kv_heads * config.head_dim
    of_layer = 2 * config.dim**2 + 2 * config.dim * kv_dim + 3 * config.dim * config.hidden
    weights = config.layers * of_layer + config.dim * config.vocabulary
    attention = 2.0 * config.layers * length**2 * config.dim
    return 3.0 * sequences * (2.0 * weights * length + attention)


def rotary(x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Turns the pair of features i and i + D/2 of the token at place s by the angle s * base**(-2i/D)."""
    half = x.shape[-1] // 2
    # Angles of thousands of radians need more bits than 16-bit floats have.
    exact = torch.promote_types(x.dtype, torch.float32)
    rates = ROTARY_BASE ** (-torch.arange(half, dtype=exact, device=x.device) / half)
    angles = torch.outer(places.to(exact), rates)
    cosines, sines = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    first, second = x.chunk(2, -1)
    return torch.cat([first * cosines - second * sines, first * sines + second * cosines], -1)


Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


class Sequences(Protocol):
    """What a rank has of sequences that are split over several."""

    def places(self, length: int, device: torch.device) -> torch.Tensor:
        """The places of its tokens in the sequence."""

    def attended(self, attend: Attend, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """What its queries see."""


class LlamaAttention(nn.Module):
    """Causal attention; the number of heads is what the projections give, a rank's share where they are split."""

    sequences: Sequences | None = None
    """None: the rank has whole sequences."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        self.query = nn.Linear(config.dim, config.dim, bias=False)
        self.key = nn.Linear(config.dim, config.kv_heads * config.head_dim, bias=False)
        self.value = nn.Linear(config.dim, config.kv_heads * config.head_dim, bias=False)
        self.output = nn.Linear(config.dim, config.dim, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = (
            projection(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for projection in (self.query, self.key, self.value)
        )
        if self.sequences is None:
            places = torch.arange(x.shape[1], device=x.device)
            mixed = self.attend(rotary(query, places), rotary(key, places), value)
        else:
            places = self.sequences.places(x.shape[1], x.device)
            mixed = self.sequences.attended(self.attend, rotary(query, places), rotary(key, places), value)
        output: torch.Tensor = self.output(mixed.transpose(1, 2).flatten(2))
        return output

    def attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """What each head sees: the one of a query's group is shared by H/G heads.

        The last query is at the place of the last key. There are more keys than queries if the sequence is split.
        """
        if query.shape[2] == key.shape[2]:
            return functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        mask = causal_lower_right(query.shape[2], key.shape[2])
        return functional.scaled_dot_product_attention(query, key, value, mask, enable_gqa=True)


class FeedForward(nn.Module):
    """SwiGLU (arXiv 2002.05202)."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.gate = nn.Linear(config.dim, config.hidden, bias=False)
        self.up = nn.Linear(config.dim, config.hidden, bias=False)
        self.down = nn.Linear(config.hidden, config.dim, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.down(functional.silu(self.gate(x)) * self.up(x))
        return output


class LlamaLayer(nn.Module):
    """Attention and feed-forward, each on a norm of its input, and added to it."""

    def __init__(self, config: Config, attention: type[LlamaAttention]) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(config.dim, NORM_EPSILON)
        self.attention = attention(config)
        self.feed_forward_norm = nn.RMSNorm(config.dim, NORM_EPSILON)
        self.feed_forward = FeedForward(config)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.attention_norm(x))
        output: torch.Tensor = x + self.feed_forward(self.feed_forward_norm(x))
        return output


class Llama(nn.Module):
    """Stage ``stage`` of ``stages``: its share of the layers; the first embeds tokens, the last predicts them."""

    def __init__(
        self, config: Config, stage: int, stages: int, attention: type[LlamaAttention] = LlamaAttention
    ) -> None:
        super().__init__()
        # On the CPU: the model may be made on the meta device.
        shares = torch.arange(config.layers, device="cpu").tensor_split(stages)
        self.embedding = nn.Embedding(config.vocabulary, config.dim) if stage == 0 else None
        # A dictionary: a stage's layers keep the names they have in the whole model.
        self.layers = nn.ModuleDict({str(int(index)): LlamaLayer(config, attention) for index in shares[stage]})
        last = stage == stages - 1
        self.norm = nn.RMSNorm(config.dim, NORM_EPSILON) if last else None
        self.head = nn.Linear(config.dim, config.vocabulary, bias=False) if last else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.embedding is not None:
            x = self.embedding(x)
        for layer in self.layers.values():
            x = layer(x)
        if self.norm is not None and self.head is not None:
            x = self.head(self.norm(x))
        return x


def loss_of(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """The mean cross entropy over all tokens; of 16-bit logits in float32, as training does."""
    exact = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return functional.cross_entropy(exact.flatten(0, 1), target.flatten())


MODULES = {
    "embedding": "model.embed_tokens",
    "attention_norm": "input_layernorm",
    "attention.query": "self_attn.q_proj",
    "attention.key": "self_attn.k_proj",
    "attention.value": "self_attn.v_proj",
    "attention.output": "self_attn.o_proj",
    "feed_forward_norm": "post_attention_layernorm",
    "feed_forward.gate": "mlp.gate_proj",
    "feed_forward.up": "mlp.up_proj",
    "feed_forward.down": "mlp.down_proj",
    "norm": "model.norm",
    "head": "lm_head",
}
"""Our names of a Llama's modules, and those of transformers; below ``layers.N`` for those that each layer has."""


def their_name(name: str) -> str:
    """The name of one of our parameters in transformers' Llama."""
    module = name.removesuffix(".weight")
    if not module.startswith("layers."):
        return f"{MODULES[module]}.weight"
    _, number, rest = module.split(".", 2)
    return f"model.layers.{number}.{MODULES[rest]}.weight"
