"""Steps in which one rank is slow: late, on a busy device, or behind a slow link."""
