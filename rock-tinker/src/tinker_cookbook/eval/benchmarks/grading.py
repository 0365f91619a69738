"""Reading answers out of texts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction


def extract_boxed(text: str) -> str | None:
    r"""Content of the last ``\boxed{...}``, with nested braces; None without one."""
    start = max(text.rfind("\\boxed{"), text.rfind("\\fbox{"))
    if start < 0:
        return None
    begin = text.index("{", start) + 1
    depth = 1
    for position in range(begin, len(text)):
        depth += {"{": 1, "}": -1}.get(text[position], 0)
        if depth == 0:
            return text[begin:position]
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


_UNITS = re.compile(r"\\(?:text|mathrm|mbox)\{[^{}]*\}")


def normalize_answer(text: str) -> str:
    """A mathematical answer in a comparable form: no spaces, units, dollar signs, sizes of brackets."""
    text = text.strip().rstrip(".")
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
    a, b = normalize_answer(given), normalize_answer(expected)
    if a == b:
        return True
    left, right = _number(a), _number(b)
    if left is not None and right is not None:
        return left == right
    return _same_expression(a, b)


def _same_expression(a: str, b: str) -> bool:
    if max(len(a), len(b)) > 200 or not (set("\\^(*+") & set(a + b)):
        return False
    try:
        import sympy
        from sympy.parsing.sympy_parser import implicit_multiplication_application, parse_expr, standard_transformations
    except ImportError:
        return False
    if not all(re.fullmatch(r"[0-9a-z+\-*/^().{}\\]*", text) for text in (a, b)):
        return False

    def read(text: str) -> object:
        text = re.sub(r"\\frac\{([^{}]*)\}\{([^{}]*)\}", r"((\1)/(\2))", text)
        text = re.sub(r"\\sqrt\{([^{}]*)\}", r"sqrt(\1)", text).replace("\\pi", "pi").replace("\\cdot", "*")
        if "\\" in text or "{" in text or re.search(r"\^\(?\d{3,}", text) or "__" in text:
            raise ValueError(text)
        transformations = (*standard_transformations, implicit_multiplication_application)
        return parse_expr(text.replace("^", "**"), transformations=transformations)

    try:
        return bool(sympy.simplify(read(a) - read(b)) == 0)  # type: ignore[operator]
    except Exception:  # what cannot be read is not equal
        return False
