"""Parts of judge_trial.py: runs of a suite on real GPUs, unchanged and with one test slowed."""
