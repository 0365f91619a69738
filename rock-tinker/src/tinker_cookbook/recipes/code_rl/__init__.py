"""Recipe: code rl."""
