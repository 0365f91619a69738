"""Raw responses and request options, for programs that name these types."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict

import httpx

APIResponse = httpx.Response
AsyncAPIResponse = httpx.Response


class RequestOptions(TypedDict, total=False):
    """Options of one request."""

    headers: Mapping[str, str]
    max_retries: int
    timeout: float | httpx.Timeout | None
    params: Mapping[str, Any]
    extra_json: Mapping[str, Any]
    idempotency_key: str
    follow_redirects: bool
