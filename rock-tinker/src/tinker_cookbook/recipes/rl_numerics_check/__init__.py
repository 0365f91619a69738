"""Recipe: numerics of sampler and trainer."""
