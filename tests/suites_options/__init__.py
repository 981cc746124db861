"""Public options of the library parts that the suites cover, and which of them a program uses."""
