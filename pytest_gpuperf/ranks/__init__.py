"""Running programs on ranks: the processes, the messages between them, and their failures."""
