"""Sandboxes for agent reinforcement learning."""
