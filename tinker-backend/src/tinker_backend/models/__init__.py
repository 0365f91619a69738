"""Model folders: where a base model comes from before the runtime loads it."""
