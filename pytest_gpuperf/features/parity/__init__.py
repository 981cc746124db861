"""Numbers: whether ranks compute what one device computes, up to rounding, and if not, why."""

PUBLIC = {"Parity": "fixture", "census": "census", "parity_record": "recording", "watch": "watching"}
