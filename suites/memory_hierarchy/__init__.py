"""Every tier of memory that a GPU reaches: its caches, its own memory, its neighbour's, and the host's over PCIe."""
