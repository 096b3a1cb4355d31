"""The reader of line formulas: right values, and nothing but arithmetic let through."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.base.errors import CostModelError
from costmodel.bill.formula import evaluate, evaluate_steps

POSITIVE = st.floats(1e-6, 1e6)


@given(POSITIVE, POSITIVE, st.floats(0, 1))
def test_steps_and_precedence(busy, window, contention):
    formula = "exposed = max(busy - window, 0); exposed + contention * (busy - exposed)"
    exposed = max(busy - window, 0)
    expected = exposed + contention * (busy - exposed)
    got = evaluate(formula, {"busy": busy, "window": window, "contention": contention})
    assert float(got) == pytest.approx(expected, rel=1e-15)


def test_values():
    for formula, value in [
        ("2 + 3 * 4 ** 2", 50),
        ("-2 ** 2", -4),
        ("(1 + 2) / 4", 0.75),
        ("where(3 >= 2, 1, 0)", 1),
        ("ceil(2.1) + floor(2.9)", 5),
        ("cbrt(27) + sqrt(16) + log2(8)", 10),
        ("min(1e-3, 5, 2)", 1e-3),
        ("min(1e400, 5)", 5),
        ("max(1, 3, 2) - min(4, 2)", 1),
        ("2 ** 3 + 3 ** 2 + 2 ** 0.5 ** 2", 17 + 2**0.25),
        ("(3 > 3) + (3 >= 3) * 2 + (3 < 3) * 4 + (3 <= 3) * 8 + (3 == 3) * 16 + (3 != 3) * 32", 26),
        ("where(1 and 0, 1, 2) + where(1 or 0, 4, 8) + where(not 0, 16, 32)", 22),
        ("x = 3; y = x ** 2; z = y ** 3; z - y - x", 729 - 9 - 3),
        ("ceil(-0.5) + floor(-0.5)", -1),
    ]:
        assert float(evaluate(formula, {})) == pytest.approx(value)


def test_arrays_broadcast():
    got = evaluate("a * b", {"a": np.ones((3, 1)), "b": np.arange(4.0)})
    assert got.shape == (3, 4)


def test_steps_have_names_and_values():
    steps = evaluate_steps("a = 2 * x; b = a + 1; a * b", {"x": 3})
    assert [(step.name, float(step.value)) for step in steps] == [("a", 6), ("b", 7), ("", 42)]


def test_anything_else_is_refused():
    for formula in [
        "",
        "a = 1",
        "1; 2",
        "1 +",
        "__import__('os')",
        "x.real",
        "[1, 2]",
        "'text'",
        "max(1, 2, key=3)",
        "lambda: 1",
        "1 < 2 < 3",
        "import os",
        "a[0]",
        "eval(1)",
    ]:
        with pytest.raises(CostModelError, match="formula"):
            evaluate(formula, {"x": 1.0})


def test_an_unknown_name_gets_the_nearest():
    with pytest.raises(CostModelError, match=r"'widnow_s'.*'window_s'"):
        evaluate("widnow_s * 2", {"window_s": 1.0})


def test_conditions_are_joined_on_arrays():
    """Python's ``and`` would ask a whole array whether it is true."""
    tp, heads = np.array([1.0, 2.0, 4.0, 3.0]), np.array([4.0, 4.0, 2.0, 4.0])
    joined = evaluate("tp > 1 and heads % tp != 0 and tp > 3", {"tp": tp, "heads": heads})
    assert np.asarray(joined).tolist() == [False, False, True, False]
    either = evaluate("tp > 3 or heads < 4 or not tp > 1", {"tp": tp, "heads": heads})
    assert np.asarray(either).tolist() == [True, False, True, False]
    assert bool(evaluate("where(not a > 2, b, 0) == b", {"a": 1.0, "b": 5.0}))
