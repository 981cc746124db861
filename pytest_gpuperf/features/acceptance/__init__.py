"""``python -m pytest_gpuperf accept``: the suites and the doctor, and one verdict on the machine."""

NEEDS = ("day_zero", "doctor", "page", "recovery")
"""It asks references and the doctor, reads what a killed phase left, and writes a page."""
