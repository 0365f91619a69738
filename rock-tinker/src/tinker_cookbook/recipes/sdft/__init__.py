"""Recipe: sdft."""
