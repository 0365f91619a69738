"""Evaluation during and after training."""
