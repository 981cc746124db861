"""Context parallelism: attention over a sequence split over ranks against attention over the whole one."""
