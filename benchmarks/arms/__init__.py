"""The arms of ``rank_cost.py``: each a program that does its tests once and prints what each of them took."""
