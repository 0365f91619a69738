"""Recipe: text arena."""
