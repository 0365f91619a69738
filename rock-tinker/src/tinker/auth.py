"""Whether and how this process can reach a Tinker server."""

from __future__ import annotations

from ._auth import CommandCredential, StaticCredential, resolve_credential
from ._errors import TinkerError
from ._settings import resolve_base_url

__all__ = ["get_tinker_token", "raise_if_tinker_not_accessible", "tinker_has_credentials"]


def get_tinker_token() -> str | None:
    """The credential that clients would use now; None if there is none."""
    try:
        credential = resolve_credential(None, resolve_base_url())
        if isinstance(credential, CommandCredential):
            return credential.read()
    except TinkerError:
        return None
    return credential.key if isinstance(credential, StaticCredential) else None


def tinker_has_credentials() -> bool:
    """Whether clients would find a credential."""
    return get_tinker_token() is not None


def raise_if_tinker_not_accessible() -> None:
    """Ask the server for its capabilities, once, without retries.

    Raises:
        TinkerError: No credential, no connection, or a refusal.
    """
    from ._accessible import check_access

    check_access()
