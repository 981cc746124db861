"""Clocks, plans, records and formulas."""
