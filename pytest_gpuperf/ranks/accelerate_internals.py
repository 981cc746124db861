"""The private name of Accelerate that is relied on."""

SHARED = "_shared_state"
"""The dict that all objects of a class share: PartialState, AcceleratorState and GradientState have it."""
