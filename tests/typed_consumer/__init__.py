"""What a user's type checker reads: ``make types`` in the checkout, and a release with the wheel alone."""
