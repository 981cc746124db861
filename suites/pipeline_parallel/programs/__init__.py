"""Models cut into stages over ranks, and steps of training them."""
