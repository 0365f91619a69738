"""Runs programs for graders: `POST /run_code`, each run in a sandbox of its own."""
