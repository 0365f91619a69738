"""Recipe: search tool."""
