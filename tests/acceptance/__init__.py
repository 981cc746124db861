"""The verdict on a machine: its words, its phases, and the command."""
