"""Programs that save and load, a module for each thing."""
