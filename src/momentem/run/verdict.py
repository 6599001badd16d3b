"""Whether the draws of a trace can be trusted, in words, with what to do if not."""

import warnings
from typing import TYPE_CHECKING, NamedTuple

from momentem.run.diagnostics import Convergence, convergence, warn_of_trouble
from momentem.run.health import SamplingWarning, Troubles

if TYPE_CHECKING:
    import xarray

__all__ = ["Verdict", "judge"]


class Verdict(NamedTuple):
    """What is wrong with a trace, and its worst R-hat and ESS."""

    troubles: list[str]  # empty if nothing is
    found: Convergence | None  # None if the trace is too short to tell

    def text(self) -> str:
        """Return one line that says whether to trust the draws, and numbers that say why."""
        if self.found is None:
            return "Too few draws to judge."
        sizes = min(size for _, size in self.found.sizes.values())
        numbers = f"R-hat is at most {self.found.rhat[1]:.3f}, and ESS at least {sizes:,.0f}"
        verdict = "Something is wrong" if self.troubles else "Nothing speaks against these draws"
        return f"{verdict}: {numbers}."


def judge(trace: "xarray.DataTree") -> Verdict:
    """Return what is wrong with a trace, in memory or from a log, as `sample` would warn of it."""
    found = convergence(trace) if "posterior" in trace.children else None
    is_complete = trace.attrs | {"is_interrupted": trace.attrs.get("is_interrupted", 0)}
    judged = trace.copy(deep=False)
    judged.attrs = is_complete
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", SamplingWarning)
        warn_of_trouble(judged, found, Troubles(), Troubles())
    troubles = [str(w.message) for w in caught if issubclass(w.category, SamplingWarning)]
    if times := int(trace.attrs.get("num_divergences", 0)):
        troubles.insert(
            0,
            f"{times} of {trace.attrs['num_transitions']} draws diverged, "
            f"{trace.attrs['first_divergence']}, so parts of the posterior may be missing: lower "
            "the step size or reparametrise",
        )
    return Verdict(troubles, found)
