"""Everything that goes wrong in a way that a person should read, in one tree.

    BackendError
    ├── ConfigError           a configuration file that cannot be used
    ├── LedgerError           the ledger cannot store or read (a full disk, a broken file)
    ├── RuntimeGone           the runtime died or cannot start; the caller may try again
    └── ApiError              an answer with an HTTP status
        ├── BadRequest        400  the request is wrong; sent again it stays wrong
        ├── Unauthorized      401  no key, or a wrong one
        ├── Forbidden         403  a good key, someone else's thing
        ├── NotFound          404
        ├── TooSlow           408  the body did not come in time
        ├── Expired           410  it existed and is gone
        ├── TooLarge          413
        ├── Busy              429  try again soon
        └── Unavailable       503  the server cannot serve now (starting, disk full)

409 is never used: clients repeat it for minutes. An operation that fails after its promise was given carries an
``OperationFailure`` as its result instead of an HTTP status.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

Category = Literal["user", "server", "unknown"]


class BackendError(Exception):
    """Base of all errors of this package."""


class ConfigError(BackendError):
    """A configuration file that cannot be used. The message names file, key, value and fix."""


class LedgerError(BackendError):
    """The ledger cannot store or read."""


class RuntimeGone(BackendError):
    """The runtime process ended, or never came up. ``in_flight``: it held the call when it died."""

    def __init__(self, message: str, in_flight: bool = False) -> None:
        super().__init__(message)
        self.in_flight = in_flight


class ApiError(BackendError):
    """An error with an HTTP status; the message is the ``detail`` of the answer."""

    status: ClassVar[int] = 500
    headers: ClassVar[dict[str, str]] = {}


class BadRequest(ApiError):
    """The request is wrong."""

    status = 400


class Unauthorized(ApiError):
    """No key, or a wrong one."""

    status = 401


class Forbidden(ApiError):
    """The key is good, the thing is someone else's."""

    status = 403


class NotFound(ApiError):
    """No such thing."""

    status = 404


class TooSlow(ApiError):
    """The body did not come in time; the connection ends."""

    status = 408
    headers = {"connection": "close"}


class Expired(ApiError):
    """It existed and is gone."""

    status = 410


class TooLarge(ApiError):
    """A body, batch or header above its limit."""

    status = 413


class Busy(ApiError):
    """More work than the server takes at once."""

    status = 429
    headers = {"retry-after": "1"}


class Unavailable(ApiError):
    """The server cannot serve now, but will."""

    status = 503
    headers = {"retry-after": "2"}


@dataclass(frozen=True)
class OperationFailure:
    """Why an accepted operation has no result. ``user``: the request was wrong; ``server``: the server was."""

    message: str
    category: Category
