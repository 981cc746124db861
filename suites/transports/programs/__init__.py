"""What is sent between the ranks, and over which of NCCL's ways."""
