"""Distillation: a student learns from the distributions of teachers."""
