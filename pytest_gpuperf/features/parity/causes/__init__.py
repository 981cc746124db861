"""Hypotheses about a wrong tensor. Each names a cause only if the tensor agrees with it to rounding."""
