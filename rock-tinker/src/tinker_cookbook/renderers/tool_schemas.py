"""JSON schemas of tools as TypeScript declarations, in the two ways that chat formats write them."""

from __future__ import annotations

import json
from typing import Any

from tinker_cookbook.renderers.messages import ToolSpec

_NAMES = {"integer": "number", "number": "number", "string": "string", "boolean": "boolean"}


def kimi_declaration(tools: list[ToolSpec]) -> str:
    """Content of the ``tool_declare`` message of Kimi K2.5 and later."""
    rows = []
    for tool in tools:
        rows += [f"// {line}" for line in tool["description"].split("\n") if tool["description"]]
        rows.append(f"type {tool['name']} = (_: {_kimi_type(tool['parameters'] or {'type': 'object'}, 1)}) => any;")
    return "# Tools\n\n## functions\nnamespace functions {\n" + "".join(f"{row}\n" for row in rows) + "}\n"


def _kimi_type(schema: dict[str, Any], depth: int) -> str:
    if "enum" in schema:
        return " | ".join(json.dumps(value, ensure_ascii=False) for value in schema["enum"])
    kind = str(schema.get("type", "any"))
    if kind == "array":
        return f"Array<{_kimi_type(schema.get('items', {}), depth)}>"
    if kind != "object":
        return _NAMES.get(kind, "any")
    indent, rows = "  " * depth, []
    required = schema.get("required", ())
    for name in sorted(schema.get("properties", {}), key=lambda name: name not in required):
        field = schema["properties"][name]
        note = f"{indent}// {field['description']}\n" if field.get("description") else ""
        rows.append(f"{note}{indent}{name}{'' if name in required else '?'}: {_kimi_type(field, depth + 1)}")
    return "{\n" + ",\n".join(rows) + "\n" + "  " * (depth - 1) + "}" if rows else "{}"


def harmony_declaration(tools: list[ToolSpec]) -> str:
    """Tools section of a harmony developer message."""
    parts = []
    for tool in tools:
        note = "".join(f"// {line}\n" for line in tool["description"].split("\n")) if tool["description"] else ""
        schema = tool["parameters"]
        arguments = f"(_:\n{harmony_type(schema)})" if schema.get("properties") else "()"
        parts.append(f"{note}type {tool['name']} = {arguments} => any;\n\n")
    return "# Tools\n\n## functions\n\nnamespace functions {\n\n" + "".join(parts) + "} // namespace functions"


def harmony_type(schema: dict[str, Any]) -> str:
    """A JSON schema as a TypeScript type."""
    if "enum" in schema and schema.get("type", "string") == "string":
        return " | ".join(json.dumps(value, ensure_ascii=False) for value in schema["enum"])
    kind = schema.get("type", "any")
    if kind == "object" and "properties" in schema:
        required = set(schema.get("required", ()))
        rows = []
        for name, field in schema["properties"].items():
            note = f"// {field['description']}\n" if field.get("description") else ""
            rows.append(f"{note}{name}{'' if name in required else '?'}: {harmony_type(field)},")
        return "{\n" + "\n".join(rows) + "\n}"
    if kind == "array":
        return f"{harmony_type(schema.get('items', {}))}[]"
    return _NAMES.get(str(kind), "any")
