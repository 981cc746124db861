"""The training script that torchrun starts, and what is computed about the time that failures cost."""
