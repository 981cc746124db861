"""A Llama-shaped model, and its training on a mesh."""
