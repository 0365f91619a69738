"""Recipes and library on top of the Tinker SDK."""
