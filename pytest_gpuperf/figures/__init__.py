"""Measured values, which the pytest process and the ranks both know. No torch, no pytest."""
