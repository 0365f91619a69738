"""Recipe: shorter."""
