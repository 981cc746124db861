"""Metrics, the baselines they are held against, and the rule that judges them; nothing here measures."""
