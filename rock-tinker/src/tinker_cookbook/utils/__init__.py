"""Logging, tracing and small tools."""
