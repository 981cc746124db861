"""What communicators cost: to make, to use for the first time, to split, and to take down."""
