"""Communication coverage: which faults in what programs communicate no test notices."""
