"""``python -m tinker_cookbook.recipes.chat_sl.sweep``."""

from tinker_cookbook.recipes.chat_sl.sweep.cli import main

main()
