"""The charts of the report, as inline SVG. Colours come from the page's style sheet."""

from __future__ import annotations

from typing import Any

_WIDTH = 760


def returns(steps: list[dict[str, Any]]) -> str:
    """A row a step, a dot a rollout: filled by its return, grey where it was not evaluated."""
    height = 26 * len(steps) + 30
    parts = [_text(0, 14, "return of each rollout, one row a step")]
    for row, step in enumerate(steps):
        y = 34 + 26 * row
        parts.append(_text(0, y + 4, f"step {step['step']}"))
        found = dict(zip(step["graded_rollouts"], step["group_returns"], strict=True))
        for index in range(step["rollouts_started"]):
            value = found.get(index)
            tone = "none" if value is None else "up" if value > 0 else "down"
            shown = "not evaluated" if value is None else f"return {value:g}"
            parts.append(
                f'<circle class="{tone}" cx="{80 + 30 * index}" cy="{y}" r="{4 if value is None else 8}">'
                f"<title>rollout {index}: {shown}</title></circle>"
            )
        outcome = "trained" if step["skipped"] is None else "skipped"
        parts.append(_text(80 + 30 * step["rollouts_started"], y + 4, outcome))
    return _svg(height, parts, "Returns by step and rollout")


def advantages(step: dict[str, Any]) -> str:
    """Bars of the advantages of one group around zero."""
    values = step["group_advantages"]
    if not values:
        return ""
    largest = max(abs(value) for value in values) or 1.0
    middle, reach = 95, 60
    parts = [
        _text(0, 14, "advantage of each rollout"),
        f'<line class="rule" x1="0" x2="{_WIDTH}" y1="{middle}" y2="{middle}"/>',
    ]
    width = min(70.0, _WIDTH / len(values))
    for place, (index, value) in enumerate(zip(step["graded_rollouts"], values, strict=True)):
        size = reach * abs(value) / largest
        top = middle - size if value >= 0 else middle
        x = place * width
        tone = "none" if value == 0 else "up" if value > 0 else "down"
        parts.append(
            f'<rect class="{tone}" x="{x + 8:.1f}" y="{top:.1f}" width="{width - 16:.1f}" height="{max(size, 1):.1f}" rx="2"/>'
        )
        parts.append(_text(x + width / 2, middle + reach + 34, f"{index}", anchor="middle"))
        label = middle - size - 5 if value >= 0 else middle + size + 14
        parts.append(_text(x + width / 2, label, f"{value:+.2f}", anchor="middle", tone="value"))
    return _svg(middle + reach + 42, parts, "Advantages of the group")


def losses(steps: list[dict[str, Any]]) -> str:
    """The loss of each trained step, as labelled bars around zero."""
    found = [(step["step"], (step.get("fwdbwd_metrics") or {}).get("loss:sum")) for step in steps]
    values = [(step, float(value)) for step, value in found if value is not None]
    if not values:
        return ""
    largest = max(abs(value) for _, value in values) or 1.0
    parts = [_text(0, 14, "policy loss (sum over sampled tokens) of each trained step")]
    left, reach = 380, 240
    for row, (step, value) in enumerate(values):
        y = 34 + 24 * row
        size = reach * abs(value) / largest
        x = left if value >= 0 else left - size
        parts.append(_text(0, y + 4, f"step {step}"))
        parts.append(f'<rect class="none" x="{x:.1f}" y="{y - 7}" width="{max(size, 1):.1f}" height="14" rx="2"/>')
        place, anchor = (left + size + 6, "start") if value >= 0 else (left - size - 6, "end")
        parts.append(_text(place, y + 4, f"{value:.4g}", anchor=anchor, tone="value"))
    height = 34 + 24 * len(values)
    parts.append(f'<line class="rule" x1="{left}" x2="{left}" y1="22" y2="{height - 8}"/>')
    return _svg(height, parts, "Loss of each trained step")


def _text(x: float, y: float, text: str, *, anchor: str = "start", tone: str = "") -> str:
    kind = f' class="{tone}"' if tone else ""
    return f'<text{kind} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{text}</text>'


def _svg(height: float, parts: list[str], title: str) -> str:
    return (
        f'<svg viewBox="0 0 {_WIDTH} {height:.0f}" role="img" aria-label="{title}">\n' + "\n".join(parts) + "\n</svg>"
    )
