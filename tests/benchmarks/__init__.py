"""The benchmarks' arithmetic; what they measure is no test's business."""
