"""Recipe: rubric."""
