"""Everything this SDK raises on purpose.

TinkerError
├── APIError                          message, request, body
│   ├── APIResponseValidationError    the answer does not have the promised form
│   ├── APIConnectionError            no answer
│   │   └── APITimeoutError           no answer in time
│   └── APIStatusError                response, status_code
│       ├── BadRequestError           400
│       ├── AuthenticationError       401
│       ├── BillingError              402
│       ├── PermissionDeniedError     403
│       ├── NotFoundError             404
│       ├── ConflictError             409
│       ├── UnprocessableEntityError  422
│       ├── RateLimitError            429
│       └── InternalServerError       500 and above
└── RequestFailedError                the server accepted a request and failed later

ExperimentalWarning (a FutureWarning)
"""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import httpx

    from .types import RequestErrorCategory


class TinkerError(Exception):
    """Base of all errors of this SDK."""


class ExperimentalWarning(FutureWarning):
    """The method may change without notice."""


class APIError(TinkerError):
    """A request went wrong. ``body`` is the decoded JSON of the answer, its text, or None."""

    message: str
    request: httpx.Request
    body: object | None

    def __init__(self, message: str, request: httpx.Request, *, body: object | None) -> None:
        super().__init__(message)
        self.message = message
        self.request = request
        self.body = body


class APIResponseValidationError(APIError):
    """The answer does not have the form that this SDK expects."""

    response: httpx.Response
    status_code: int

    def __init__(self, response: httpx.Response, body: object | None, message: str | None = None) -> None:
        super().__init__(message or "Data returned by API invalid for expected schema.", response.request, body=body)
        self.response = response
        self.status_code = response.status_code


class APIStatusError(APIError):
    """The server answered with a status of 400 or above."""

    response: httpx.Response
    status_code: int

    def __init__(self, message: str, response: httpx.Response, body: object | None) -> None:
        super().__init__(message, response.request, body=body)
        self.response = response
        self.status_code = response.status_code


class APIConnectionError(APIError):
    """No answer came."""

    def __init__(self, request: httpx.Request, message: str = "Connection error.") -> None:
        super().__init__(message, request, body=None)


class APITimeoutError(APIConnectionError):
    """No answer came in time."""

    def __init__(self, request: httpx.Request) -> None:
        super().__init__(request, "Request timed out.")


class BadRequestError(APIStatusError):
    """400"""


class AuthenticationError(APIStatusError):
    """401"""


class BillingError(APIStatusError):
    """402"""


class PermissionDeniedError(APIStatusError):
    """403"""


class NotFoundError(APIStatusError):
    """404"""


class ConflictError(APIStatusError):
    """409"""


class UnprocessableEntityError(APIStatusError):
    """422"""


class RateLimitError(APIStatusError):
    """429"""


class InternalServerError(APIStatusError):
    """500 and above"""


class RequestFailedError(TinkerError):
    """The server accepted a request and failed it later. ``category`` says whose fault that is."""

    def __init__(self, message: str, request_id: str, category: RequestErrorCategory) -> None:
        super().__init__(message)
        self.message = message
        self.request_id = request_id
        self.category = category


class RetryableError(Exception):
    """A promise expired (410): the operation may be submitted again."""


_BY_STATUS: dict[int, type[APIStatusError]] = {
    400: BadRequestError,
    401: AuthenticationError,
    402: BillingError,
    403: PermissionDeniedError,
    404: NotFoundError,
    409: ConflictError,
    422: UnprocessableEntityError,
    429: RateLimitError,
}


def status_error(response: httpx.Response) -> APIStatusError:
    """The error of an answer with a status of 400 or above; the body must have been read."""
    text = response.text.strip()
    body: Any = text or None
    with contextlib.suppress(ValueError):
        body = json.loads(text)
    status = response.status_code
    kind = _BY_STATUS.get(status, InternalServerError if status >= 500 else APIStatusError)
    return kind(f"Error code: {status} - {body}", response=response, body=body)


for _error in list(globals().values()):  # tracebacks name tinker.BadRequestError, the place to import it from
    if isinstance(_error, type) and issubclass(_error, TinkerError | ExperimentalWarning):
        _error.__module__ = "tinker"
del _error
