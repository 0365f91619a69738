"""The error of the scripts in this folder."""

from __future__ import annotations


class SettingError(Exception):
    """An option or a file is missing or wrong; the message names it and the fix."""
