"""Tests of the doctor: on machines kept as files of facts, and on made-up trees of /proc and /sys."""
