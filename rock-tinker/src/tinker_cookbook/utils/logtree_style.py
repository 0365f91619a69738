"""How a report looks: the style of its page and the page around a fragment."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

DEFAULT_CSS = """
:root{--lt-text:#222;--lt-bg:#f6f6f6;--lt-border:#d4d4d4;--lt-accent:#2f6fb0}
body{font:14px/1.45 system-ui,sans-serif;max-width:70rem;margin:1rem auto;padding:0 1rem;color:var(--lt-text)}
section{border-left:2px solid var(--lt-border);padding-left:.8rem;margin:.4rem 0}
h1,h2,h3,h4,h5,h6{margin:.5rem 0 .2rem}.lt-subtitle{color:#777;font-size:.85em}
.lt-p,.lt-details-body,pre{white-space:pre-wrap;overflow-wrap:anywhere;margin:.2rem 0}pre{background:var(--lt-bg);padding:.4rem}
.lt-table{border-collapse:collapse;margin:.2rem 0 .6rem}.lt-table td,.lt-table th{border:1px solid var(--lt-border);padding:.1rem .5rem}
.lt-table-caption{font-weight:600;margin-top:.4rem}details{margin:.3rem 0}.lt-exc{border:1px solid #c33;padding:.3rem}
"""


@dataclass(frozen=True)
class Theme:
    """Style of a page: ``css_text`` takes the place of the library's own, ``css_urls`` are linked and ``css_vars``
    (``--lt-text``, ``--lt-bg``, ``--lt-border``, ``--lt-accent``) are set last."""

    css_text: str | None = None
    css_urls: Sequence[str] = field(default_factory=list)
    css_vars: Mapping[str, str] = field(default_factory=dict)

    def css(self) -> str:
        """All rules of the page."""
        rules = DEFAULT_CSS if self.css_text is None else self.css_text
        if not self.css_vars:
            return rules
        values = "".join(f"  {name}: {value};\n" for name, value in self.css_vars.items())
        return f"{rules}\n:root {{\n{values}}}\n"


def head(title: str, theme: Theme | None = None, extra_head: str | None = None, extra_css: str = "") -> str:
    """What belongs between the head tags of a page."""
    theme = theme or Theme()
    links = [f'<link rel="stylesheet" href="{html.escape(url)}">' for url in theme.css_urls]
    lines = [
        f"<title>{html.escape(title)}</title>",
        '<meta charset="UTF-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1.0">',
        *links,
        f"<style>\n{theme.css()}{extra_css}</style>",
        *([extra_head] if extra_head else []),
    ]
    return "\n".join(lines)


def page(head_html: str, body_html: str, lang: str = "en") -> str:
    """A whole page. ``body_html`` may have its own body tags."""
    if not body_html.lstrip().startswith("<body"):
        body_html = f"<body>\n{body_html}</body>\n"
    return f'<!doctype html>\n<html lang="{html.escape(lang)}">\n<head>\n{head_html}\n</head>\n{body_html}</html>\n'
