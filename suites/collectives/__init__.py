"""The collectives of torch.distributed: exact results, and bus bandwidth as nccl-tests defines it."""
