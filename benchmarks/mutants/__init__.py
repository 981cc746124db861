"""Realistic faults in programs and in torch, and how they are put in place."""
