"""What transformers calls the parameters of a Llama."""

from __future__ import annotations

MODULES = {
    "embedding": "model.embed_tokens",
    "attention_norm": "input_layernorm",
    "attention.query": "self_attn.q_proj",
    "attention.key": "self_attn.k_proj",
    "attention.value": "self_attn.v_proj",
    "attention.output": "self_attn.o_proj",
    "feed_forward_norm": "post_attention_layernorm",
    "feed_forward.gate": "mlp.gate_proj",
    "feed_forward.up": "mlp.up_proj",
    "feed_forward.down": "mlp.down_proj",
    "norm": "model.norm",
    "head": "lm_head",
}
"""Our names of a Llama's modules, and those of transformers; below ``layers.N`` for those that each layer has."""


def their_name(name: str) -> str:
    """The name of one of our parameters in transformers' Llama."""
    module = name.removesuffix(".weight")
    if not module.startswith("layers."):
        return f"{MODULES[module]}.weight"
    _, number, rest = module.split(".", 2)
    return f"model.layers.{number}.{MODULES[rest]}.weight"
