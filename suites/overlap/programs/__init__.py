"""What ranks compute and send at once: gradients' means during backward, sums under matrix products."""
