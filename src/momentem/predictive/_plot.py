"""One picture of a trace: whether it can be trusted, and what it found."""

from typing import TYPE_CHECKING, Any

from momentem.checks import check_count
from momentem.predictive.draws import check_posterior
from momentem.predictive.panels import choose_scalars, marginal, panels, ranks
from momentem.predictive.scalars import read_scalars
from momentem.run.figures import new_figure
from momentem.run.verdict import judge

if TYPE_CHECKING:
    import xarray

__all__ = ["plot"]


def plot(trace: "xarray.DataTree", num_scalars: int = 4) -> Any:
    """Return one figure of a trace: marginals and ranks by chain, ESS against what is wanted,
    energy, what was learnt, and divergences.

    Args:
        trace: what `sample` returned, in memory or on disk.
        num_scalars: parameters that are shown, the first ones.

    Returns:
        A Matplotlib figure, which notebooks show. `figure.savefig("trace.png")` writes it. It needs
        the extra `plots`.

    Examples:
        >>> import jax.numpy as jnp, momentem as mt
        >>> target = mt.density(lambda x: -0.5 * x @ x, jnp.zeros(2))
        >>> figure = mt.plot(mt.sample(target, mt.hmc(target, step_size=1.0, num_steps=2)))
        >>> len(figure.axes)
        6
    """
    check_posterior(trace)
    check_count(1, num_scalars=num_scalars)
    known = read_scalars(trace, max(30, 2 * num_scalars))
    scalars = choose_scalars(known, num_scalars)
    below = panels(trace, known)
    columns = 4
    num_panels = 2 * len(scalars) + len(below)
    rows = -(-num_panels // columns)
    figure = new_figure(figsize=(13, 2.4 * rows + 0.4))
    axes = iter(figure.subplots(rows, columns, squeeze=False).ravel())
    for label, draws in scalars.items():
        marginal(next(axes), label, draws)
        ranks(next(axes), label, draws)
    for draw in below.values():
        draw(next(axes))
    for axis in axes:
        axis.remove()
    for axis in figure.axes:
        axis.title.set_fontsize(9)
    figure.suptitle(judge(trace).text(), fontsize=11)
    return figure
