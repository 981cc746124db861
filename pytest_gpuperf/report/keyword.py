"""The keyword by which reports of tests on ranks are known."""

RANKS_KEYWORD = "gpuperf: test on ranks"
"""Among a report's keywords if the test runs on ranks; "ranks" alone may be the name of a folder too."""
