"""Recipe: preference."""
