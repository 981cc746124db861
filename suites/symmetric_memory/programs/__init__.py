"""What ranks do through memory that all of them reach."""
