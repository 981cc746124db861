"""The ways by which NCCL moves bytes between GPUs, each forced by its variables and proved from NCCL's log."""
