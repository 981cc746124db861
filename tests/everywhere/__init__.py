"""``python -m pytest_gpuperf everywhere``: launchers, secrets, preflight, and whole runs on hosts that are apart."""
