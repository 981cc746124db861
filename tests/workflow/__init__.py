"""Tests of the reusable workflow, whose steps run as on GitHub."""
