"""API keys: made on the command line, hashed at rest, checked on every request, exchanged for short-lived tokens."""

from .authenticator import KeyAuthenticator, open_authenticator
from .command import keys
from .key_file import KeyFile, KeyRecord

__all__ = ["KeyAuthenticator", "KeyFile", "KeyRecord", "keys", "open_authenticator"]
