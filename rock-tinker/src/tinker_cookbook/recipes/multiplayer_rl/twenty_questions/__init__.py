"""Recipe: twenty questions."""
