"""Options of the scripts in this folder."""

from __future__ import annotations

import argparse
from typing import NoReturn


class OptionParser(argparse.ArgumentParser):
    """A wrong option ends the program with one sentence instead of a screen of usage."""

    def error(self, message: str) -> NoReturn:
        """Ends with exit code 2."""
        self.exit(2, f"{self.prog}: {message}; {self.prog} --help lists the options\n")
