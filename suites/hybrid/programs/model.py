"""A small Llama-shaped model (arXiv 2302.13971, 2307.09288), whole or one pipeline stage of it.

RMS norms, rotary position embedding, grouped queries, SwiGLU. B sequences of S tokens; H heads of D features,
of which G are heads of keys and values; F hidden features of the feed-forward layer, V tokens in the vocabulary.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional

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


def rotate(x: torch.Tensor) -> torch.Tensor:
    """Turns the pair of features i and i + D/2 of the token at place s by the angle s * base**(-2i/D)."""
    length, half = x.shape[-2], x.shape[-1] // 2
    places = torch.arange(length, dtype=x.dtype, device=x.device)
    rates = ROTARY_BASE ** (-torch.arange(half, dtype=x.dtype, device=x.device) / half)
    angles = torch.outer(places, rates)
    cosines, sines = angles.cos(), angles.sin()
    first, second = x.chunk(2, -1)
    return torch.cat([first * cosines - second * sines, first * sines + second * cosines], -1)


class Attention(nn.Module):
    """Causal attention; the number of heads is what the projections give, a rank's share where they are split."""

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
        mixed = self.attend(rotate(query), rotate(key), value)
        output: torch.Tensor = self.output(mixed.transpose(1, 2).flatten(2))
        return output

    def attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """What each head sees: the one of a query's group is shared by H/G heads."""
        return functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)


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


class Layer(nn.Module):
    """Attention and feed-forward, each on a norm of its input, and added to it."""

    def __init__(self, config: Config, attention: type[Attention]) -> None:
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

    def __init__(self, config: Config, stage: int, stages: int, attention: type[Attention] = Attention) -> None:
        super().__init__()
        shares = torch.arange(config.layers).tensor_split(stages)
        self.embedding = nn.Embedding(config.vocabulary, config.dim) if stage == 0 else None
        # A dictionary: a stage's layers keep the names they have in the whole model.
        self.layers = nn.ModuleDict({str(int(index)): Layer(config, attention) for index in shares[stage]})
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
    """The mean cross entropy over all tokens."""
    return functional.cross_entropy(logits.flatten(0, 1), target.flatten())
