"""What people and programs read of a run; decides nothing, and is the only place that formats a unit."""
