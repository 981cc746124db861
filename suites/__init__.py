"""What is run: a folder for each subject, whose files docs/adding-a-suite.md names, and what several share."""
