"""Memory and traffic of the cluster runtime on paper: ``python -m tinker_backend.scaling``."""
