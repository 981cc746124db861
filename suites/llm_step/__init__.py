"""A whole training step of a language model: its speed over each way of NCCL, and what it waits for."""
