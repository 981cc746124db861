"""RDMA devices: what each port of this host carries between two GPUs, and whether it reaches their memory itself."""
