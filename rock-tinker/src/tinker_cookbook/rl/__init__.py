"""Reinforcement learning: environments, rollouts, data, training."""
