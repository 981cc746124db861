"""One pytest run: which tests run on which ranks, what they measured, and what became of it."""
