"""The block around which the sequence is split, and steps of it as a training takes them."""
