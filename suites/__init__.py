"""What is run: one folder a subject, with programs.py, test_correctness.py and test_performance.py in each."""
