"""What a run has learnt, in the form that BlackJAX and NumPyro take.

The steps of the default's kernel rotate, and are exact for a Gaussian; leapfrog steps are not. On a
whitened Gaussian of D dimensions, the energy error of leapfrog steps eps has the variance
D eps^4 / 16, so that the acceptance rate is 0.8 at

    eps_G = 1.42 D^(-1/4)

What is not Gaussian gives an error of its own, which made the rotating step what it is, eps_R. The
two variances add:

    eps = (eps_G^-4 + eps_R^-4)^(-1/4)
"""

from typing import TYPE_CHECKING, Any

import numpy as np

from momentem.bridges.blackjax import inverse_mass_of
from momentem.run.warm_start import inverse_mass_matrix, learnt_from
from momentem.types import Learnt

if TYPE_CHECKING:
    import xarray

__all__ = ["to_blackjax", "to_numpyro"]

GAUSSIAN_STEP = 1.42


def to_blackjax(trace: "xarray.DataTree") -> dict[str, Any]:
    """Return what was learnt as arguments of BlackJAX's algorithms.

    Args:
        trace: what `sample` returned, for a sampler that learns.

    Returns:
        `step_size`, which is right for leapfrog steps, and `inverse_mass_matrix`.

    Examples:
        >>> import blackjax, jax.numpy as jnp, momentem as mt
        >>> target = mt.density(lambda x: -0.5 * jnp.sum(x**2), initial=jnp.zeros(3))
        >>> nuts = blackjax.nuts(target.logdensity, **mt.to_blackjax(mt.sample(target)))
    """
    learnt = learnt_from(trace)
    return {
        "step_size": leapfrog_step(learnt),
        "inverse_mass_matrix": inverse_mass_of(learnt.mass),
    }


def to_numpyro(trace: "xarray.DataTree") -> dict[str, Any]:
    """Return what was learnt as arguments of `numpyro.infer.NUTS` and `HMC`.

    They need no warm-up then, because they start where the trace's first chain ended. A step size
    that was learnt in the bulk of the posterior may never leave a start outside it.

    Args:
        trace: what `sample` returned, for a target from `from_numpyro`.

    Returns:
        `step_size`, which is right for leapfrog steps, `inverse_mass_matrix`, `dense_mass`,
        `adapt_mass_matrix=False`, and an `init_strategy`.

    Examples:
        >>> import momentem as mt, numpyro, numpyro.distributions as dist
        >>> def model():
        ...     numpyro.sample("x", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
        >>> trace = mt.sample(mt.from_numpyro(model))
        >>> nuts = numpyro.infer.NUTS(model, **mt.to_numpyro(trace))
    """
    from numpyro.infer import init_to_value

    learnt = learnt_from(trace)
    group = "posterior" if "posterior" in trace.children else "warmup_posterior"
    last = trace[group].to_dataset().isel(chain=0, draw=-1)
    matrix = inverse_mass_matrix(learnt.mass)
    return {
        "step_size": leapfrog_step(learnt),
        "inverse_mass_matrix": matrix,
        "dense_mass": matrix.ndim == 2,
        "adapt_mass_matrix": False,
        "init_strategy": init_to_value(values={str(k): v.values for k, v in last.items()}),
    }


def leapfrog_step(learnt: Learnt) -> float:
    """Return a step size for leapfrog steps. A kernel with a path is one whose steps rotate."""
    step = float(learnt.step_size)
    if "path" not in learnt:
        return step
    dim = len(learnt.mass.inverse_mass_diagonal())
    powers = np.array([step, GAUSSIAN_STEP * dim**-0.25]) ** -4.0
    return float(powers.sum() ** -0.25)
