"""Measures of the parity fixture: false alarms, slack and cost."""
