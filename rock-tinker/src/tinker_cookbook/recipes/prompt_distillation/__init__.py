"""Recipe: prompt distillation."""
