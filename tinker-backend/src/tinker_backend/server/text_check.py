"""Text that is no text: JSON can spell halves of surrogate pairs, which no database and no answer can hold."""

from __future__ import annotations

import json
import re

from fastapi import Request
from fastapi.exceptions import RequestValidationError

_ESCAPED_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


async def refuse_broken_text(request: Request) -> None:
    """A dependency of every route. Raises RequestValidationError; whole pairs, and bytes that are no JSON, pass."""
    if "protobuf" in request.headers.get("content-type", ""):
        return
    body = await request.body()
    if not _ESCAPED_SURROGATE.search(body):
        return
    try:
        document = json.loads(body)
        json.dumps(document, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        half = str(error.object)[error.start : error.start + 1]
        problem = {
            "type": "string_unicode",
            "loc": ("body",),
            "msg": "text holds half of a surrogate pair; send valid Unicode",
            "input": half.encode("ascii", "backslashreplace").decode(),
        }
        raise RequestValidationError([problem], body=document) from None
    except (ValueError, RecursionError):
        return  # the route has its own words for what is no JSON
