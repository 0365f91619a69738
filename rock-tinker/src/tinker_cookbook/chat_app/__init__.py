"""Chat in a terminal."""
