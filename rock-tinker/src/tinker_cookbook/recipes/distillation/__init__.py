"""Recipe: distillation."""
