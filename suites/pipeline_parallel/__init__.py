"""Pipeline parallelism: a model cut into stages, one a rank, against the whole model."""
