"""Recipe: chat sl."""
