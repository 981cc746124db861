"""NVLink between the GPUs of one machine: peer copies against staging through the host, and every pair's rate."""
