"""One module per kind of route."""
