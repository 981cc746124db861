"""Gives a worker of xdist whole files, and to one worker the files that share a Ray cluster: each takes ten seconds."""

from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]  # it brings no types

SHARED_CLUSTERS = {
    "two nodes": ("authentication", "changes", "output", "ports", "runs"),
    "two nodes with GPUs": ("judging", "leasing", "unlike_nodes"),
}
"""Files of tests/cluster by the fixture of the package that they use."""
_GROUPS = {f"tests/cluster/test_{name}.py": group for group, names in SHARED_CLUSTERS.items() for name in names}


class SchedulingByCluster(LoadFileScheduling):  # type: ignore[misc]
    """A unit of work is a file, or all files that share a cluster."""

    def _split_scope(self, nodeid: str) -> str:
        """Return the unit of a test."""
        file = nodeid.partition("::")[0]
        return _GROUPS.get(file, file)
