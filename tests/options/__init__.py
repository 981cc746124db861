"""One module for each command line option."""
