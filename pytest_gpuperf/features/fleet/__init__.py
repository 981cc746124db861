"""Many hosts of one hardware side by side: which one is slow, and in what. No torch, no pytest."""
