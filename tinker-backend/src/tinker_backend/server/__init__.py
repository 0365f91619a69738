"""The HTTP server: routes, principals and limits."""
