"""One command for a job of many nodes: it starts Ray on them, runs a command on the first, and ends everything."""
