"""The results of a run that was killed, from the journal that it kept."""
