"""Pipeline parallelism: a model cut into stages over ranks, against the whole model."""
