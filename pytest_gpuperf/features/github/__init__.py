"""A run in a workflow of GitHub: its job summary, its annotations, and a comment of its pull request."""
