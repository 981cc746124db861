"""Training under torchrun whose ranks are killed or hang: it goes on from a checkpoint as if nothing had happened."""
