"""The checks, by theme: each takes the facts and yields findings. None looks at the machine itself."""
