"""Reading answers out of texts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction

from tinker_cookbook.eval.benchmarks.expressions import read_expression


def extract_boxed(text: str) -> str | None:
    r"""Content of the last ``\boxed{...}`` that is closed, with nested braces (of a box in a box, the inner
    one); else the word after the last
    ``\boxed`` and a space; None without one. ``\fbox`` counts, too."""
    found, position = None, 0
    while opened := re.compile(r"\\f?box(?:ed)?\{").search(text, position):
        end = _closing_brace(text, opened.end())
        position = opened.end() if end is None else end
        found = found if end is None else text[opened.end() : end]
    if found is not None and "\\boxed{" in found:
        return extract_boxed(found)
    if found is None:
        bare = re.findall(r"\\boxed\s+([a-zA-Z0-9]+)", text)
        found = bare[-1] if bare else None
    return found


def _closing_brace(text: str, begin: int) -> int | None:
    """Where the brace that was opened just before ``begin`` is closed."""
    depth = 1
    for position in range(begin, len(text)):
        depth += {"{": 1, "}": -1}.get(text[position], 0)
        if depth == 0:
            return position
    return None


def extract_number(text: str) -> str | None:
    """The last number in a text, without thousands separators."""
    found = re.findall(r"-?\d[\d,]*(?:\.\d+)?(?:/\d+)?", text)
    return found[-1].replace(",", "") if found else None


def extract_gsm8k_answer(text: str) -> str | None:
    """Answer of a GSM8K solution: after ``####``."""
    match = re.search(r"####\s*(.+)", text)
    return match.group(1).strip().replace(",", "").replace("$", "") if match else None


def check_gsm8k(response: str, expected: str) -> bool:
    """Whether a response (boxed, after ####, or its last number) is the expected number."""
    given = extract_boxed(response) or extract_gsm8k_answer(response) or extract_number(response)
    return given is not None and same_answer(given, expected)


def extract_mcq_answer(text: str, valid_letters: Sequence[str] = ("A", "B", "C", "D")) -> str | None:
    """The chosen letter: boxed, after "answer is"/"answer:", or a lone letter at the end."""
    letters = "".join(valid_letters)
    boxed = extract_boxed(text)
    if boxed is not None and boxed.strip().strip("()").upper() in valid_letters:
        return boxed.strip().strip("()").upper()
    found = re.findall(rf"answer\s*(?:is|:)\s*\**\(?([{letters}])\b", text, flags=re.IGNORECASE)
    if found:
        return str(found[-1]).upper()
    lone = re.findall(rf"(?:^|\n)\s*\(?([{letters}])[\).]?\s*$", text.strip())
    return str(lone[-1]) if lone else None


def format_mcq_choices(choices: Sequence[str]) -> str:
    """``A. first`` on lines of their own."""
    return "\n".join(f"{chr(ord('A') + i)}. {choice}" for i, choice in enumerate(choices))


def extract_python_code(text: str) -> str | None:
    """The last fenced block (Python or without language)."""
    found = re.findall(r"```(?:python|py)?\s*\n(.*?)```", text, flags=re.DOTALL)
    return found[-1].strip() if found else None


_UNITS = re.compile(r"\\(?:text|textbf|mathrm|mbox)\{[^{}]*\}")
_UNIT_WORDS = re.compile(
    r"(?<=[\d}])\s*(?:degrees?|[cmk]m|(?:centi|kilo)?met(?:er|re)s?|miles?|seconds?|minutes?|hours?|days?|weeks?|months?|years?"
    r"|f(?:oo|ee)t|inch(?:es)?|yards?)$"
)


def normalize_answer(text: str) -> str:
    """A mathematical answer in a comparable form: no spaces, units, dollar signs, sizes of brackets."""
    text = _UNIT_WORDS.sub("", text.strip().rstrip(".")).replace("{,}", ",")
    text = re.sub(r"\s+(?:and|or)\s+", ",", text)
    text = _UNITS.sub(lambda m: m.group(0)[m.group(0).index("{") + 1 : -1] if text == m.group(0) else "", text)
    for old, new in (
        ("\\left", ""),
        ("\\right", ""),
        ("\\!", ""),
        ("\\,", ""),
        ("\\;", ""),
        ("\\ ", ""),
        ("\\$", ""),
        ("$", ""),
        ("\\%", ""),
        ("%", ""),
        ("dfrac", "frac"),
        ("tfrac", "frac"),
        ("^{\\circ}", ""),
        ("^\\circ", ""),
        (" ", ""),
    ):
        text = text.replace(old, new)
    text = re.sub(r"\\frac(\d)(\d)", r"\\frac{\1}{\2}", text)
    text = re.sub(r"\\sqrt(\d)", r"\\sqrt{\1}", text)
    text = re.sub(r"(?<=\d),(?=\d{3}(?:\D|$))", "", text)
    if text.startswith("{") and text.endswith("}") and "{" not in text[1:]:
        text = text[1:-1]
    if "=" in text and text.count("=") == 1 and len(text.split("=")[0]) <= 2:
        text = text.split("=")[1]
    return text


def _number(text: str) -> Fraction | None:
    match = re.fullmatch(r"(-?)\\frac\{(-?\d+)\}\{(-?\d+)\}", text)
    if match and int(match.group(3)):
        return Fraction(int(match.group(2)), int(match.group(3))) * (-1 if match.group(1) else 1)
    try:
        return Fraction(text)
    except (ValueError, ZeroDivisionError):
        return None


def same_answer(given: str, expected: str) -> bool:
    """Whether two mathematical answers are the same text, or the same number, or (with sympy) the same expression."""
    a, b = normalize_answer(given).lower(), normalize_answer(expected).lower()
    if a == b or _bare(a) == _bare(b) != "":
        return True
    parts = _parts(a), _parts(b)
    if all(parts):
        ends = {(x[0], x[-1]) for x in (a, b)}
        return len(ends) == 1 and len(parts[0]) == len(parts[1]) and all(map(same_answer, *parts))
    left, right = _number(_bare(a)), _number(_bare(b))
    if left is not None and right is not None:
        return left == right
    return _same_expression(a, b)


def _bare(text: str) -> str:
    """One value without the brackets around it."""
    inner = text[1:-1]
    return inner if text[:1] == "(" and text[-1:] == ")" and not set("(),") & set(inner) else text


def _parts(text: str) -> list[str]:
    """Elements of a tuple or an interval; none of anything else."""
    if len(text) < 3 or text[0] not in "([" or text[-1] not in ")]" or set("()[]") & set(text[1:-1]) or "," not in text:
        return []
    return text[1:-1].split(",")


def _same_expression(a: str, b: str) -> bool:
    if not (set("\\^(*+") & set(a + b)):
        return False
    try:
        import sympy
    except ImportError:
        return False
    try:
        return bool(sympy.simplify(read_expression(a) - read_expression(b)) == 0)
    except Exception:  # what cannot be read is not equal
        return False
