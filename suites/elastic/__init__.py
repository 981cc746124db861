"""Training under torchrun whose machines come and go: each sample is seen once in an epoch, and the loss goes on."""
