"""Recipe: rlhf."""
