"""Several kinds of parallelism at once: a Llama-shaped model on meshes of ranks, against one device."""
