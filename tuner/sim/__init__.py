"""How a recorded host's kernel and devices answer writes."""
