"""Recipe: dpo."""
