"""A target from a NumPyro model: its latent sites, unconstrained, as one flat vector.

    log p(u) = -potential_energy(u)          NumPyro's, with the Jacobians of its bijections

A model whose data NumPyro would subsample becomes a minibatch target: see subsample.py.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.tree_util import Partial
from jaxtyping import Array
from numpyro.distributions import Delta

from momentem.bridges import numpyro_model
from momentem.bridges.foreign import Constants
from momentem.bridges.numpyro_model import Site
from momentem.bridges.subsample import Plate, at_all, outside, stochastic_target, subsampled_plate
from momentem.checks import check_callable
from momentem.pytrees import as_partial
from momentem.targets._density import Target
from momentem.targets._minibatch import AnyTarget
from momentem.targets.parameters import as_parameters, check_scalar
from momentem.types import Vector

__all__ = ["from_numpyro"]

# what JAX raises at a model that has to see the values of its data
UNTRACEABLE = (
    jax.errors.ConcretizationTypeError,
    jax.errors.NonConcreteBooleanIndexError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)


def from_numpyro(model: Callable[..., Any], *args: Any, **kwargs: Any) -> AnyTarget:
    """A target from a NumPyro model and its arguments. Draws hold latent and deterministic sites.

    A model with a plate of a `subsample_size` becomes a minibatch target; the data must then be
    indexed by what `with numpyro.plate(...) as indices` gives, or by `numpyro.subsample`, and
    deterministic sites inside that plate are left out of the draws.

    Arrays among the arguments are arguments of the compiled program too, so that new data of the
    same shape do not compile again, unless the model has to see their values.

    Args:
        model: a function of NumPyro's primitives, with any handlers around it.
        *args: the model's.
        **kwargs: the model's.

    Examples:
        >>> import jax.numpy as jnp, momentem as mt, numpyro, numpyro.distributions as dist
        >>> def model(y):
        ...     scale = numpyro.sample("scale", dist.HalfNormal(1.0))
        ...     numpyro.deterministic("variance", scale**2)
        ...     numpyro.sample("y", dist.Normal(0.0, scale), obs=y)
        >>> target = mt.from_numpyro(model, jnp.array([1.0, -2.0]))
        >>> sorted(target.constrain(target.initial))
        ['scale', 'variance']
    """
    check_callable(model=model)
    try:
        return _built(_bound(model, args, kwargs, _is_array))
    except UNTRACEABLE:
        return _built(_bound(model, args, kwargs, _is_nothing))


def _built(model: Partial) -> AnyTarget:
    """The target of a model whose arguments are bound."""
    sites = numpyro_model.sites(model)
    has_kept = any(site.is_kept for site in sites.values())
    kept = numpyro_model.kept_values(model) if has_kept else {}
    settled = Partial(numpyro_model.settled, model, kept)
    plate = subsampled_plate(sites)
    free = _zeros(sites, plate)
    if plate is None:
        return _target(settled, settled, free)
    target = _target(at_all(settled, plate), outside(settled, plate), free)
    return stochastic_target(target, settled, plate)


def _target(model: Partial, shown: Partial, free: dict[str, Array]) -> Target:
    """The target of `model`; draws hold the sites of `shown`."""
    initial, unravel = ravel_pytree(free)
    unravel = Partial(unravel)
    target = Target(
        logdensity=Partial(numpyro_model.logdensity, model, unravel),
        initial=initial,
        constrain=Partial(numpyro_model.constrain, shown, unravel),
        unconstrain=Partial(numpyro_model.unconstrain, model, Constants(*free)),
        unravel=unravel,
    )
    check_scalar("the log density of model", _at, initial, target.logdensity)
    # of the names alone: draws may be of several dtypes
    as_parameters(dict.fromkeys(jax.eval_shape(_at, initial, target.constrain), 0.0))
    return target


def _at(position: Vector, function: Callable) -> Any:
    """An evaluation in which what is bound to the function is traced too."""
    return function(position)


def _bound(model: Callable, args: tuple, kwargs: dict, is_leaf: Callable[[Any], bool]) -> Partial:
    """The model with its arguments bound: leaves as arrays, the rest as constants."""
    values, structure = jax.tree.flatten((args, kwargs))
    arrays = {i: jnp.asarray(value) for i, value in enumerate(values) if is_leaf(value)}
    rest = [None if i in arrays else value for i, value in enumerate(values)]
    return Partial(_run, as_partial(model), Constants(structure, *rest), arrays)


def _run(model: Callable, constants: Constants, arrays: dict[int, Array]) -> Any:
    structure, *values = constants.values
    for i, array in arrays.items():
        values[i] = array
    args, kwargs = jax.tree.unflatten(structure, values)
    return model(*args, **kwargs)


def _is_array(value: Any) -> bool:
    is_numbers = isinstance(value, np.ndarray) and value.dtype.kind in "biufc"
    return is_numbers or isinstance(value, jax.Array)


def _is_nothing(value: Any) -> bool:
    del value
    return False


def _zeros(sites: dict[str, Site], plate: Plate | None) -> dict[str, Array]:
    """The latent sites at 0 on the unconstrained scale, or an error that names the one that cannot
    be sampled."""
    latent = {name: site for name, site in sites.items() if site.is_latent}
    if not latent:
        raise ValueError(f"model must have a latent site to sample, got sites {sorted(sites)}")
    for name, site in latent.items():
        if site.is_discrete:
            raise ValueError(
                f"latent sites of model must be continuous, got {name!r} of "
                f"{site.distribution.__name__}; sum it out, e.g. by a mixture distribution"
            )
        if issubclass(site.distribution, Delta):
            raise ValueError(
                f"latent sites of model must be random, got {name!r} of Delta; use "
                "numpyro.deterministic"
            )
        if plate is not None and plate.name in site.plates:
            raise ValueError(
                f"latent sites of model must be outside its subsampled plate, got {name!r} inside "
                f"{plate.name!r}; drop subsample_size, or observe the site by `obs`"
            )
    return as_parameters({k: jnp.zeros(s.free_shape, s.dtype) for k, s in latent.items()})
