"""kernS on strings whose parentheses enclose nothing that must be kept from distribution."""

import pytest
from sympy import Symbol, sin, sympify
from sympy.core.sympify import SympifyError, kernS

x = Symbol("x")
y = Symbol("y")


def test_quotient_of_two_parentheses() -> None:
    assert kernS("(2*x)/(x-1)") == 2 * x / (x - 1)


@pytest.mark.parametrize("text", ["(x)", "((x))", "(x + 1)", "(x)**2", "x + (y)", "(x - 1)/(x + 1)", "(7)"])
def test_parentheses_without_a_product_before_them(text: str) -> None:
    assert kernS(text) == sympify(text)


def test_function_call() -> None:
    assert kernS("sin(x)") == sin(x)


def test_list_of_strings() -> None:
    assert kernS(["(x)", "(2*x)/(x-1)"]) == [x, 2 * x / (x - 1)]


def test_factor_before_a_sum_stays_in_front() -> None:
    kept = kernS("2*(x + y)")
    assert kept.is_Mul and str(kept) == "2*(x + y)"


def test_minus_before_a_sum_stays_in_front() -> None:
    assert str(kernS("-(x + 1)")) == "-(x + 1)"


def test_missing_parenthesis_is_still_an_error() -> None:
    with pytest.raises(SympifyError):
        kernS("(x")
