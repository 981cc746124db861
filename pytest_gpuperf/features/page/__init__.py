"""A run's results as one page of HTML, which needs no network and no other file; decides nothing."""
