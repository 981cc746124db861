"""``python -m pytest_gpuperf accept``: the suites and the doctor, and one verdict on the machine."""
