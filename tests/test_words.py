"""Docstrings of the public API: every function starts with a verb and has an example that runs."""

import inspect
import re

import pytest

import momentem as mt
from momentem import topics

NAMESPACES = {
    "momentem": mt,
    "kernels": mt.kernels,
    "m_steps": mt.m_steps,
    "e_steps": mt.e_steps,
    "schedules": mt.schedules,
    "metrics": mt.metrics,
    "fixed_points": mt.fixed_points,
    "riemannian": mt.riemannian,
    "sources": mt.sources,
    "testing": mt.testing,
    "topics": topics,
}
BANNED = {"As", "Of", "Whether"}  # openings of clauses without a subject or a verb
BANNED_FOR_FUNCTIONS = BANNED | {
    *("A", "All", "An", "Each", "Every", "How", "It", "Mean", "One", "So", "The", "This", "Those"),
    *("Three", "Two", "What", "When", "Where", "Which"),
}


def public():
    """Every public function and class by name, each once."""
    found = {}
    for prefix, module in NAMESPACES.items():
        for name in module.__all__:
            value = getattr(module, name)
            is_ours = getattr(value, "__module__", "").startswith("momentem")
            if is_ours and (inspect.isfunction(value) or inspect.isclass(value)):
                found.setdefault(id(value), (f"{prefix}.{name}", value))
    return dict(found.values())


def faults(value):
    """What is wrong with the docstring of a function or class."""
    text = inspect.cleandoc(value.__doc__ or "")
    first, _, _ = text.partition(" ")
    if not text or text.startswith(f"{value.__name__}("):  # NamedTuple writes one of its own
        return ["has no docstring"]
    if inspect.isclass(value):
        return [f"starts with {first!r}"] if first in BANNED else []
    found = []
    if first in BANNED_FOR_FUNCTIONS or not re.fullmatch(r"[A-Z][a-z]+", first):
        found.append(f"starts with {first!r}, which is no verb")
    if re.fullmatch(r".*([^s]s|ed)", first):
        found.append(f"starts with {first!r}, which is no imperative")
    if ">>>" not in text:
        found.append("has no example")
    return found


@pytest.mark.parametrize("name", public())
def test_a_docstring_starts_with_a_verb_and_has_an_example(name):
    found = faults(public()[name])
    assert not found, f"the docstring of {name} {' and '.join(found)}"


def documented(text):
    def function():
        pass

    function.__doc__ = text
    return function


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (None, "no docstring"),
        ("Of rows of which some count nothing.\n\n>>> 1", "'Of'"),
        ("Whether `value` is a tracer.\n\n>>> 1", "'Whether'"),
        ("Refuses a target.\n\n>>> 1", "no imperative"),
        ("kappa_k = 1.\n\n>>> 1", "no verb"),
        ("Return the target of a log density.", "no example"),
    ],
)
def test_the_rules_would_notice(text, fault):
    assert any(fault in found for found in faults(documented(text)))
    assert not faults(documented("Return the target of a log density.\n\n>>> 1"))
