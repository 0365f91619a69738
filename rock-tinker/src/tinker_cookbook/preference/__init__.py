"""Learning from comparisons: DPO, reward models, comparison policies."""
