"""Recipes: one file or folder each, run as `python -m tinker_cookbook.recipes.NAME`."""
