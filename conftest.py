"""The plugin is installed (``make install``); this file marks the root of the tests and the suites."""
