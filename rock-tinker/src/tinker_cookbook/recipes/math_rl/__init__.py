"""Recipe: math rl."""
