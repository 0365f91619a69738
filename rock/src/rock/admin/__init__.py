"""The control plane: one HTTP address for all sandboxes of all workers."""
