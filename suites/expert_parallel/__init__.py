"""Expert parallelism: tokens sent to the ranks of their experts and back, against every expert on one device."""
