"""What is wrong with a machine, why it matters, and what to do: facts, checks, findings. No torch, no pytest."""
