"""GPUs under load: errors that are counted, results that must not differ, and the one that is odd."""
