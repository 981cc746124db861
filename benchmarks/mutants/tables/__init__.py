"""The faults of each subject of the suites, a module each."""
