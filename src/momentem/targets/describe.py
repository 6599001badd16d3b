"""A target in one line, for people."""

from typing import Any

from momentem.pytrees import Static
from momentem.targets.parameters import parameter_forms

__all__ = ["describe"]

MOST_NAMES = 6


def describe(target: Any) -> str:
    """Return a target's parameters with their shapes, and the number of its data."""
    kind = type(target).__name__
    try:
        forms = parameter_forms(target)
    except Exception:  # JAX makes targets whose leaves are no arrays, and prints them in errors
        return f"{kind}(…)"
    names = [f"{name}{list(form.shape) or ''}" for name, form in forms.items()]
    shown = ", ".join(names[:MOST_NAMES] + ["…"] * (len(names) > MOST_NAMES))
    dim, dtype = len(target.initial), target.initial.dtype
    rows, data = getattr(target.origin, "num_rows", None), ""
    if isinstance(rows, Static):
        data = f"; {rows.value:,} data"
        if hasattr(target, "information_scale"):
            data += f" in minibatches of {target.information_scale * rows.value:.0f}"
    return f"{kind}({shown}; {dim} numbers, {dtype}{data})"
