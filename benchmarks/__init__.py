"""Measurements of the plugin itself, as ratios against other ways to do the same."""
