"""Recipes: one file or folder each, run as `tinker-cookbook recipe NAME` or `python -m tinker_cookbook.recipes.MODULE`."""

import sys

from tinker_cookbook.faults import name_missing_packages

if sys.argv[:1] == ["-m"]:  # Python is looking for the recipe that it will run
    name_missing_packages()
