"""A folder for the path of a profiled pytest, whose ranks sample themselves."""
