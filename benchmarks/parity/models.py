"""Small models, their batches and optimizers, and their training on one device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812  # as everybody calls it

from pytest_gpuperf import watch
from pytest_gpuperf.features.parity.records import Trace

WIDTH, VOCABULARY, HEADS = 32, 48, 4
BATCH, LENGTH = 8, 12
CPU = torch.device("cpu")

Batch = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class Setup:
    """One right configuration."""

    model: str = "mlp"
    parallel: str = "ddp"
    world: int = 2
    steps: int = 2
    optimizer: str = "sgd"
    dtype: torch.dtype = torch.float32
    microbatches: int = 1
    clip: float = 0.0
    autocast: bool = False
    mixed: bool = False
    compiled: bool = False
    checkpointed: bool = False
    split_sums: bool = False
    uneven: bool = False
    padded: bool = False
    flash: bool = False
    """Whether attention runs in flash attention's kernel, on ranks that have GPUs."""
    tf32: bool = False
    """Whether products of float32 run in TF32, on ranks that have GPUs."""
    by_names: bool = False
    """Whether both sides return tensors by name, without ``watch``."""


class Mlp(nn.Module):
    """A residual block between norm and head."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.act, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.SiLU(), nn.Linear(2 * WIDTH, WIDTH)
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Maps (batch, length, width) to logits."""
        out: torch.Tensor = self.head(self.norm(x + self.down(self.act(self.up(x)))))
        return out


class Convolutional(nn.Module):
    """Convolutions and a group norm over (batch, length, width)."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv1d(WIDTH, WIDTH, 3, padding=1), nn.GroupNorm(4, WIDTH)
        self.second, self.head = nn.Conv1d(WIDTH, WIDTH, 3, padding=1), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Maps (batch, length, width) to logits."""
        h = F.gelu(self.norm(self.first(x.transpose(1, 2))))
        out: torch.Tensor = self.head((h + self.second(h)).transpose(1, 2))
        return out


class Vision(nn.Module):
    """Strided convolutions over (batch, length, width) as images, a maximum pool, and a transposed convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(1, 8, 3, stride=(1, 2), padding=1), nn.GroupNorm(2, 8)
        self.second, self.pool = nn.Conv2d(8, 8, 3, padding=1, groups=4), nn.MaxPool2d((1, 2))
        self.back = nn.ConvTranspose2d(8, 4, (1, 2), stride=(1, 2))
        self.head = nn.Linear(2 * WIDTH, VOCABULARY)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Maps (batch, length, width) to logits."""
        h = F.leaky_relu(self.norm(self.first(x[:, None])))
        h = F.softplus(self.back(self.pool(h + self.second(h))))
        out: torch.Tensor = self.head(h.transpose(1, 2).flatten(2))
        return out


class Recurrent(nn.Module):
    """An embedding, a recurrent network, and a head that shares the embedding's weight."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.recurrent = nn.Embedding(VOCABULARY, WIDTH), nn.GRU(WIDTH, WIDTH, batch_first=True)
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Maps tokens to logits."""
        h = self.embedding(x)
        out: torch.Tensor = self.head(self.norm(h + self.recurrent(h)[0]))
        return out


class Mixture(nn.Module):
    """Tokens go to the two best of four experts, behind a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.router = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4, bias=False)
        self.experts = nn.Parameter(torch.randn(4, WIDTH, WIDTH) / 6)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Maps (batch, length, width) to logits."""
        h = self.norm(x)
        weight, chosen = self.router(h).softmax(-1).topk(2, -1)
        kept = torch.zeros_like(weight[..., :1]).expand(*x.shape[:2], 4).scatter(-1, chosen, weight)
        mixed = torch.einsum("bte,eio,bti->bto", kept, self.experts, h)
        out: torch.Tensor = self.head(x + torch.tanh(mixed))
        return out


class Deep(nn.Module):
    """Twelve residual blocks without a norm, and a bottleneck."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(12))
        self.narrow, self.head = nn.Linear(WIDTH, 6, bias=False), nn.Linear(6, VOCABULARY)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Maps (batch, length, width) to logits."""
        for block in self.blocks:
            x = x + F.mish(block(x)) / 4
        out: torch.Tensor = self.head(F.elu(self.narrow(x)))
        return out


class Attention(nn.Module):
    """Causal attention; ``ring`` computes it over sequences that lie on several ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))
        self.output = nn.Linear(WIDTH, WIDTH, bias=False)
        self.ring: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor] | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Maps (batch, length, width) to the same shape."""
        size = WIDTH // HEADS
        q, k, v = (p(x).unflatten(-1, (-1, size)).transpose(1, 2) for p in (self.query, self.key, self.value))
        out = self.ring(q, k, v) if self.ring is not None else F.scaled_dot_product_attention(q, k, v, is_causal=True)
        projected: torch.Tensor = self.output(out.transpose(1, 2).flatten(2))
        return projected


class Block(nn.Module):
    """Attention and a gated feed-forward network, each behind a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.attention_norm, self.attention = nn.RMSNorm(WIDTH), Attention()
        self.norm = nn.RMSNorm(WIDTH)
        self.gate, self.up = (nn.Linear(WIDTH, 2 * WIDTH, bias=False) for _ in range(2))
        self.down = nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Maps (batch, length, width) to the same shape."""
        x = x + self.attention(self.attention_norm(x))
        h = self.norm(x)
        out: torch.Tensor = x + self.down(F.silu(self.gate(h)) * self.up(h))
        return out


class Language(nn.Module):
    """A decoder of two blocks; a stage of a pipeline leaves out what other stages have."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding: nn.Module | None = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleDict({"0": Block(), "1": Block()})
        self.norm: nn.Module | None = nn.RMSNorm(WIDTH)
        self.head: nn.Module | None = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Maps tokens, or hidden states of an earlier stage, to logits or hidden states."""
        h = self.embedding(x) if self.embedding is not None else x
        for block in self.blocks.values():
            h = block(h)
        if self.norm is not None and self.head is not None:
            h = self.head(self.norm(h))
        return h


def build(setup: Setup, seed: int) -> nn.Module:
    """The model with the weights of a seed."""
    torch.manual_seed(100 + seed)
    kinds: dict[str, type[nn.Module]] = {
        "mlp": Mlp,
        "conv": Convolutional,
        "language": Language,
        "vision": Vision,
        "recurrent": Recurrent,
        "mixture": Mixture,
        "deep": Deep,
    }
    return kinds[setup.model]().to(setup.dtype)


def batches(setup: Setup, seed: int, device: torch.device = CPU) -> list[Batch]:
    """Inputs and targets of each step; targets of padding are -100."""
    g = torch.Generator().manual_seed(seed)
    size = BATCH - 1 if setup.uneven else BATCH
    found = []
    for _ in range(setup.steps):
        if setup.model in ("language", "recurrent"):
            x = torch.randint(VOCABULARY, (size, LENGTH), generator=g)
        else:
            x = torch.randn(size, LENGTH, WIDTH, generator=g).to(setup.dtype)
        y = torch.randint(VOCABULARY, (size, LENGTH), generator=g)
        if setup.padded:
            lengths = torch.randint(2, LENGTH + 1, (size, 1), generator=g)
            y = y.masked_fill(torch.arange(LENGTH) >= lengths, -100)
        found.append((x.to(device), y.to(device)))
    return found


def loss_of(out: torch.Tensor, y: torch.Tensor, *, summed: bool = False) -> torch.Tensor:
    """The cross-entropy in float32 or better, a mean over tokens or their sum."""
    out = out.float() if out.dtype in (torch.bfloat16, torch.float16) else out
    return F.cross_entropy(out.flatten(0, 1), y.flatten(), reduction="sum" if summed else "mean")


OPTIMIZERS: dict[str, tuple[Callable[..., torch.optim.Optimizer], dict[str, Any]]] = {
    "sgd": (torch.optim.SGD, {"lr": 0.1}),
    "momentum": (torch.optim.SGD, {"lr": 0.05, "momentum": 0.9, "nesterov": True}),
    "adam": (torch.optim.Adam, {"lr": 1e-3}),
    "amsgrad": (torch.optim.AdamW, {"lr": 1e-3, "amsgrad": True}),
    "nadam": (torch.optim.NAdam, {"lr": 1e-3}),
    "adamax": (torch.optim.Adamax, {"lr": 1e-3}),
    "rmsprop": (torch.optim.RMSprop, {"lr": 1e-3}),
    "adagrad": (torch.optim.Adagrad, {"lr": 1e-2}),
    "adamw": (torch.optim.AdamW, {"lr": 2e-3, "weight_decay": 0.1}),
}


def optimizer_of(setup: Setup, parameters: Iterator[nn.Parameter]) -> torch.optim.Optimizer:
    """The optimizer of a setup."""
    kind, settings = OPTIMIZERS[setup.optimizer]
    # On GPUs, an optimizer's fused loop refuses split parameters beside whole ones.
    foreach = False if setup.parallel in ("tp", "sp") else None
    return kind(parameters, foreach=foreach, **settings)


def named(model: nn.Module, losses: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    """Losses and parameters by name, for a program that is not watched."""
    return {"loss": torch.stack(losses)} | {f"weight {name}": p for name, p in model.named_parameters()}


def reference(setup: Setup, seed: int) -> Trace | dict[str, torch.Tensor]:
    """Trains on one device."""
    model = build(setup, seed)
    optimizer = optimizer_of(setup, model.parameters())
    losses = []
    with watch(model, optimizer) as trace:
        for x, y in batches(setup, seed):
            optimizer.zero_grad()
            loss = loss_of(model(x), y)
            loss.backward()
            if setup.clip:
                nn.utils.clip_grad_norm_(model.parameters(), setup.clip)
            optimizer.step()
            losses.append(loss.detach())
    return named(model, losses) if setup.by_names else trace
