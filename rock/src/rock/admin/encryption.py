"""AES-256-GCM for keys that are stored with a sandbox: base64(nonce 12 + ciphertext + tag 16)."""

from __future__ import annotations

import base64
import binascii
import os
from typing import Any

from rock.errors import ConfigError

_NONCE_BYTES = 12


def generate_key() -> str:
    """A fresh key: base64 of 32 random bytes."""
    return base64.b64encode(os.urandom(32)).decode()


def _cipher(key: str) -> Any:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError as error:
        raise ConfigError("encryption needs the package cryptography: pip install 'rl-rock[admin]'") from error
    try:
        raw = base64.b64decode(key, validate=True)
    except binascii.Error as error:
        raise ConfigError("the encryption key is not base64; make one with: rock crypto generate-key") from error
    if len(raw) != 32:
        raise ConfigError(f"the encryption key has {len(raw)} bytes, not 32; make one with: rock crypto generate-key")
    return AESGCM(raw)


def encrypt(key: str, text: str) -> str:
    nonce = os.urandom(_NONCE_BYTES)
    return base64.b64encode(nonce + _cipher(key).encrypt(nonce, text.encode(), None)).decode()


def decrypt(key: str, token: str) -> str:
    """Raises ConfigError for a wrong key or a damaged token."""
    cipher = _cipher(key)
    from cryptography.exceptions import InvalidTag

    try:
        raw = base64.b64decode(token, validate=True)
        return cipher.decrypt(raw[:_NONCE_BYTES], raw[_NONCE_BYTES:], None).decode()
    except (InvalidTag, binascii.Error, ValueError) as error:
        raise ConfigError("cannot decrypt: wrong key or damaged text") from error
