"""What is wrong with a body, in one sentence a place."""

from __future__ import annotations

import re

from fastapi.exceptions import RequestValidationError

_UNION_FORM = re.compile(r"str|int|float|bool|none|.*\[.*\]")
"""Parts of a place in pydantic's errors that are no fields but forms of a union, such as ``list[str]``."""
_MOST_PLACES = 8


def describe(error: RequestValidationError) -> str:
    """Field, rule and what was found. What a union says of each of its forms is one place, and the deepest counts."""
    rules: dict[str, list[str]] = {}
    found: dict[str, str] = {}
    for item in error.errors():
        if item["type"] == "json_invalid":
            return f"the body is no JSON: {item['ctx']['error']} at character {item['loc'][-1]}"
        path = [str(part) for part in item["loc"][1:] if not _UNION_FORM.fullmatch(str(part))]
        where = ".".join(path) or str(item["loc"][0])
        rule = str(item["msg"]).removeprefix("Value error, ")
        found.setdefault(where, "" if item["type"] == "missing" else f" (found {str(item.get('input'))[:100]!r})")
        if item["type"] == "extra_forbidden":
            rule, found[where] = "this server does not know the field; leave it out", ""
        if rule not in rules.setdefault(where, []):
            rules[where].append(rule)
    deepest = [where for where in rules if not any(other.startswith(f"{where}.") for other in rules)]
    return "; ".join(f"{where}: {' or '.join(rules[where])}{found[where]}" for where in deepest[:_MOST_PLACES])
