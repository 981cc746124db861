"""The software that all nodes must have in the same versions."""

from __future__ import annotations

import importlib.metadata

ALIKE = ("torch", "pytest-gpuperf", "cloudpickle", "numpy")
"""Distributions of which all nodes must have the same version: what one pickles the other reads."""


def read_version(distribution: str) -> str:
    """The version of what is installed; empty if it is not."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:  # one of a checkout
        return ""
