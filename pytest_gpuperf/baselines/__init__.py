"""Stored measurements: what a file says, and how a recording changes it. No torch, no pytest."""
