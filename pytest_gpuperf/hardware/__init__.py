"""What machine this is: its GPUs, how they are linked, and the name its baselines go by."""
