"""Training with shards of parameters, gradients and optimizer state, in one precision or two."""
