"""The host: how fast each NUMA node's memory is, and whether all cores are there for this run."""
