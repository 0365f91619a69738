"""Recipe: a run for every combination of settings."""
