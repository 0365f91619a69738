"""Names that sessions show in a console."""

from __future__ import annotations

import re


def slugify(text: str) -> str:
    """Letters, digits and single dashes."""
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-")


def resolve_session_display_name(*, session_name: str | None, wandb_name: str | None) -> str | None:
    """The name asked for, else the W&B name."""
    return session_name or wandb_name


def default_cookbook_session_name(*parts: str, wandb_name: str | None = None) -> str:
    """W&B name if there is one, else ``cookbook`` and the parts joined."""
    return wandb_name or "-".join(["cookbook", *(slugify(part) for part in parts if part)])
