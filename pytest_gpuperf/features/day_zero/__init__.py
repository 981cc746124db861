"""What is expected of a metric that has no record: by references of its kind of GPUs, or a model of the hardware."""
