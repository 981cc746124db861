"""Faults that an acceptance must find, put into the machine or into its ranks."""
