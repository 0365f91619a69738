"""One module per resource: HTTP in, domain objects out, nothing else."""
