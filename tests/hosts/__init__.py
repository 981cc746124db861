"""Hosts that are really apart, on one machine, and the launchers that start jobs on them."""
