"""Binary byte units, for sizes of messages and buffers."""

KiB = 1024
MiB = 1024 * KiB
GiB = 1024 * MiB
