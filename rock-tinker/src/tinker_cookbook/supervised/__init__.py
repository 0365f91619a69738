"""Supervised learning: data, loss, training."""
