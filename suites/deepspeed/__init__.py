"""DeepSpeed's own engine: ZeRO's stages and offload against the same training in one process."""
