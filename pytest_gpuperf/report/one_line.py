"""Text that a file brings, such as a reason that a reviewer wrote, as a line says it and no terminal obeys it."""

import re

# No part of a line, or of UTF-8; or what reverses the text behind it.
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]+")
_COMMAND = re.compile(r"##(?=\[)")  # GitHub's runner looks for such commands anywhere in a line


def make_one_line(text: str) -> str:
    """The text on one line, without what moves a cursor, changes a colour, or is a workflow command within a line."""
    return _COMMAND.sub("## ", _CONTROL.sub(" ", text))
