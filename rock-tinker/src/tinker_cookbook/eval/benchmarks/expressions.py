"""Mathematical expressions as models write them, read without evaluating code.

A grammar of numbers, names, ``+ - * / ^`` (also ``**``), brackets, products without a sign (``2x``, ``3(x+1)``), ``sqrt`` and
the usual functions. Sizes are limited before anything is computed, so that no answer takes long or much memory.
"""

from __future__ import annotations

import re
from typing import Any

_TOKEN = re.compile(r"(\d+(?:\.\d+)?|\.\d+)|([a-z]+)|(\*\*|[-+*/^()])")
_FUNCTIONS = ("sqrt", "sin", "cos", "tan", "cot", "sec", "csc", "asin", "acos", "atan", "log", "ln", "exp")
_LONGEST = 200
_LARGEST_EXPONENT = 100
_LARGEST_NUMBER = 10**1000


class UnreadableExpression(ValueError):
    """A text is no expression of the grammar, or one that is too large."""


def read_expression(text: str) -> Any:
    r"""The sympy expression of a text such as ``2x^2+\frac{1}{3}``; needs sympy.

    Raises:
        UnreadableExpression: not of the grammar, longer than 200 letters, exponents above 100, or numbers of 1000 digits.
    """
    if len(text) > _LONGEST:
        raise UnreadableExpression(f"longer than {_LONGEST} letters")
    text = re.sub(r"\\frac\{([^{}]*)\}\{([^{}]*)\}", r"((\1)/(\2))", text)
    text = re.sub(r"\\sqrt\{([^{}]*)\}", r"sqrt(\1)", text).replace("\\pi", "(pi)").replace("\\cdot", "*")
    text = text.replace("{", "(").replace("}", ")")
    tokens, at = [], 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise UnreadableExpression(f"{text[at]!r} at {at}")
        tokens.append(match.group())
        at = match.end()
    reader = _Reader(tokens)
    found = reader.sum()
    if reader.tokens:
        raise UnreadableExpression(f"{reader.tokens[-1]!r} is left over")
    return found


class _Reader:
    """Recursive descent; ``tokens`` is read from its end."""

    def __init__(self, tokens: list[str]) -> None:
        import sympy

        self.sympy = sympy
        self.tokens = tokens[::-1]

    def _next(self) -> str:
        return self.tokens[-1] if self.tokens else ""

    def sum(self) -> Any:
        total = self.product()
        while self._next() in ("+", "-"):
            total = total + self.product() if self.tokens.pop() == "+" else total - self.product()
        return total

    def product(self) -> Any:
        result = self.signed()
        while (ahead := self._next()) not in ("", "+", "-", ")"):
            if ahead in ("*", "/"):
                self.tokens.pop()
                factor = self.signed()
                result = result / factor if ahead == "/" else result * factor
            elif ahead in ("^", "**"):
                raise UnreadableExpression(f"{ahead!r} has no base")
            else:
                result = result * self.power()
        return self._checked(result)

    def signed(self) -> Any:
        if self._next() in ("+", "-"):
            return self.signed() if self.tokens.pop() == "+" else -self.signed()
        return self.power()

    def power(self) -> Any:
        base = self.atom()
        if self._next() not in ("^", "**"):
            return base
        self.tokens.pop()
        exponent = self.signed()
        if exponent.is_number and not bool(abs(exponent) <= _LARGEST_EXPONENT):
            raise UnreadableExpression(f"exponent {exponent}")
        return self._checked(base**exponent)

    def atom(self) -> Any:
        token = self.tokens.pop() if self.tokens else ""
        if token == "(":
            inside = self.sum()
            if not self.tokens or self.tokens.pop() != ")":
                raise UnreadableExpression("a bracket is not closed")
            return inside
        if token[:1].isdigit() or token[:1] == ".":
            return self._checked(self.sympy.Rational(token))
        if token in _FUNCTIONS and self._next() == "(":
            return getattr(self.sympy, token)(self.atom())
        if token.isalpha():
            return self.sympy.pi if token == "pi" else self.sympy.Symbol(token)
        raise UnreadableExpression(f"{token!r} where a value belongs")

    def _checked(self, value: Any) -> Any:
        """Refuses rationals of a thousand digits: a few more powers of them would fill the memory."""
        if value.is_Rational and max(abs(value.p), value.q) > _LARGEST_NUMBER:
            raise UnreadableExpression("a number of more than 1000 digits")
        return value
