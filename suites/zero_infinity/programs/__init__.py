"""Training whose parameters and optimizer state live elsewhere than on the device, checked and raced."""
