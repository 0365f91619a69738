"""Recipe: vlm classifier."""
