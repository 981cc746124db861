"""What a pipeline should compute, and what its schedule should do."""
