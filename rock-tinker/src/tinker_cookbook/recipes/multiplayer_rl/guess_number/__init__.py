"""Recipe: guess number."""
