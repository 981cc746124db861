"""The comparison with nccl-tests: fake binaries that print what real ones print, and a fake arm of the plugin."""
