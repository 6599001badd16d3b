"""Draws from the prior, and of the data that it expects."""

from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from momentem.checks import check_count
from momentem.predictive.log_likelihoods import origin_of
from momentem.targets._minibatch import AnyTarget
from momentem.targets.origin import label_data

if TYPE_CHECKING:
    import xarray

__all__ = ["prior_predictive"]


def prior_predictive(target: AnyTarget, num_draws: int = 500, seed: int = 0) -> "xarray.DataTree":
    """Return draws from the prior of a NumPyro model, and of the data that they lead to.

    A density has no prior to draw from, and PyMC draws from its own:
    `pymc.sample_prior_predictive`.

    Args:
        target: from `from_numpyro`.
        num_draws: number of draws.
        seed: of the draws.

    Returns:
        A DataTree with the groups `prior` and `prior_predictive`.

    Examples:
        >>> import jax.numpy as jnp, momentem as mt, numpyro, numpyro.distributions as dist
        >>> def line(x, y=None):
        ...     slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
        ...     numpyro.sample("y", dist.Normal(slope * x, 1.0), obs=y)
        >>> x = jnp.linspace(-1.0, 1.0, 20)
        >>> prior = mt.prior_predictive(mt.from_numpyro(line, x, y=x))
        >>> dict(prior["prior_predictive"]["y"].sizes)
        {'chain': 1, 'draw': 500, 'y_dim_0': 20}
    """
    from xarray import DataTree

    check_count(1, num_draws=num_draws)
    check_count(0, seed=seed)
    origin = origin_of(target)
    if origin.draw_prior is None:
        raise ValueError(
            "target must come from momentem.from_numpyro to draw from its prior; for a PyMC model "
            "use pymc.sample_prior_predictive(model=model), and a log density has no draws of its "
            "own"
        )
    groups = _draw(origin.draw_prior, jax.random.key(seed), num_draws)
    arrays = {
        group: {name: np.asarray(x)[None] for name, x in found.items()}
        for group, found in zip(("prior", "prior_predictive"), groups, strict=True)
    }
    return DataTree.from_dict(
        {
            g: label_data(found, origin.labels, ("chain", "draw"))
            for g, found in arrays.items()
            if found
        }
    )


def _draw(draw: Any, key: Any, number: int) -> Any:
    return jax.jit(lambda draw, keys: jax.lax.map(draw, keys, batch_size=16))(
        draw, jax.random.split(key, number)
    )
