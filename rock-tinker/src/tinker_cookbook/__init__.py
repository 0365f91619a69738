"""Recipes and library on top of the Tinker SDK.

Nothing heavy is imported here: ``import tinker_cookbook`` costs a few milliseconds. Import the module that you need,
for example ``from tinker_cookbook import renderers`` or ``from tinker_cookbook.rl import train``.
"""

__version__ = "0.1.0"
