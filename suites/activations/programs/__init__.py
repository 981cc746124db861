"""What becomes of activations between forward and backward, and what that takes of the memory."""
