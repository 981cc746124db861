"""What is run: a folder for each subject, whose files docs/dev/adding-a-suite.md names, and what several share."""
