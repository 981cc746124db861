"""Numbers: whether ranks compute what one device computes, up to rounding, and if not, why."""
