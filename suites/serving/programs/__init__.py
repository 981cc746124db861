"""What serves requests: pages of keys and values, engines, and how pages go from rank to rank."""
