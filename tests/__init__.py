"""The plugin's own tests, mirroring the package."""
