"""Recipe: multiplayer rl."""
