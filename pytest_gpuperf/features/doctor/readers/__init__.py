"""Small readers of facts: /proc, /sys, resource limits, package versions, the environment."""
