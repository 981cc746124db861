"""Activation memory: recompute, offload to the host, shard over ranks and lend to a peer, against keeping all."""
