"""Several nodes: what their network costs, which ways and layouts spare it, and which node is slow."""
