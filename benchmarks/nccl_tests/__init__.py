"""What ``against_nccl_tests.py`` is made of: its two arms, what they measure, and how their figures are compared."""
