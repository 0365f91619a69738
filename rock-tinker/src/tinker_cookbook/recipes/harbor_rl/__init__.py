"""Recipe: harbor rl."""
