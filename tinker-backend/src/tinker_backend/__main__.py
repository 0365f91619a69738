"""``python -m tinker_backend`` is the command ``tinker-backend``."""

from .cli import main

if __name__ == "__main__":
    main(prog_name="tinker-backend")
