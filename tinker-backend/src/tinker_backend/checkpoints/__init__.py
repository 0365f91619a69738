"""Saved weights: their names, folders, lifetimes and downloads."""
