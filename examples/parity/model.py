"""A small language model, its sharded form, and its training loop."""

from torch import nn
from torch.distributed.fsdp import fully_shard


class Block(nn.Module):
    """Normalises, and adds an MLP."""

    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x):
        return x + self.mlp(self.norm(x))


class Model(nn.Module):
    """Predicts the next token."""

    def __init__(self, vocabulary=32, width=16, blocks=2):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def shard(model, mesh):
    """Shards the parameters of each block, and of the rest, over the ranks of the mesh."""
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def train(model, optimizer, batches):
    """Takes one step for each batch of tokens."""
    for tokens in batches:
        optimizer.zero_grad()
        logits = model(tokens[:, :-1])
        nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
        optimizer.step()
