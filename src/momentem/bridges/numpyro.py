"""Targets from NumPyro models. The position is the flat vector of unconstrained latent sites.

    log p(u) = -potential_energy(u)          NumPyro's, with the Jacobians of its bijections

A model with a subsampled plate becomes a minibatch target: see subsample.py.
"""

import inspect
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
from momentem.bridges.numpyro_origin import merge_arguments, numpyro_origin, with_constants
from momentem.bridges.subsample import (
    Plate,
    find_subsampled_plate,
    hide_plate,
    stochastic_target,
    use_all_data,
)
from momentem.checks import check_callable
from momentem.pytrees import as_partial
from momentem.targets._density import Target
from momentem.targets._minibatch import AnyTarget
from momentem.targets.parameters import as_parameters, check_scalar
from momentem.types import Vector

__all__ = ["from_numpyro"]

# JAX raises these for a model whose control flow depends on the values of its data
UNTRACEABLE = (
    jax.errors.ConcretizationTypeError,
    jax.errors.NonConcreteBooleanIndexError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)


def from_numpyro(model: Callable[..., Any], *args: Any, **kwargs: Any) -> AnyTarget:
    """Return the target of a NumPyro model. Draws hold its latent and deterministic sites.

    A model that has a plate with a `subsample_size` becomes a minibatch target. Its data must then
    be indexed by the indices of `with numpyro.plate(...) as indices`, or by `numpyro.subsample`.
    Deterministic sites inside that plate are left out of the draws.

    Arrays among the arguments are arguments of the compiled program, too. New data of the same
    shape therefore do not compile again, unless the model depends on their values in Python.

    Args:
        model: a function of NumPyro's primitives, with any handlers around it.
        *args: positional arguments of the model.
        **kwargs: keyword arguments of the model.

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
    _check_arguments(model, args, kwargs)
    try:
        target = _build(_bind(model, args, kwargs, _is_array))
    except UNTRACEABLE:
        target = _build(_bind(model, args, kwargs, _is_nothing))
    return target._replace(origin=with_constants(target.origin, model, args, kwargs))


def _check_arguments(model: Callable[..., Any], args: tuple, kwargs: dict[str, Any]) -> None:
    """Refuse arguments that the model cannot be called with."""
    try:
        signature = inspect.signature(model)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        name = getattr(model, "__name__", "model")
        raise TypeError(
            f"args must be the model's own, got a call with a {error}; write "
            f"momentem.from_numpyro({', '.join([name, *signature.parameters])})"
        ) from None


def _build(model: Partial) -> AnyTarget:
    """Return the target of a model whose arguments are bound."""
    sites = numpyro_model.sites(model)
    has_kept = any(site.is_kept for site in sites.values())
    kept = numpyro_model.kept_values(model) if has_kept else {}
    bound = Partial(numpyro_model.run_with_kept, model, kept)
    plate = find_subsampled_plate(sites)
    free = _zeros(sites, plate)
    origin = numpyro_origin(bound, sites, plate, Partial(_rebind, model, kept))
    if plate is None:
        return _target(bound, bound, free)._replace(origin=origin)
    target = _target(use_all_data(bound, plate), hide_plate(bound, plate), free)
    return stochastic_target(target._replace(origin=origin), bound, plate)


def _rebind(bound: Partial, kept: dict[str, Any], new_data: Any) -> Partial:
    """Return a model with other arguments in place of those that are bound to it."""
    model, constants, arrays = bound.args
    args, kwargs = _arguments(constants, arrays)
    is_leaf = _is_array if arrays else _is_nothing
    other = _bind(model, *merge_arguments(model, args, kwargs, new_data), is_leaf)
    return Partial(numpyro_model.run_with_kept, other, kept)


def _target(model: Partial, shown: Partial, free: dict[str, Array]) -> Target:
    """Return the target of `model`. Draws hold the sites of `shown`."""
    initial, unravel = ravel_pytree(free)
    unravel = Partial(unravel)
    target = Target(
        logdensity=Partial(numpyro_model.logdensity, model, unravel),
        initial=initial,
        constrain=Partial(numpyro_model.constrain, shown, unravel),
        unconstrain=Partial(numpyro_model.unconstrain, model, Constants(*free)),
        unravel=unravel,
    )
    check_scalar("the log density of model", _evaluate, initial, target.logdensity)
    # checks the names only, because draws may have several dtypes
    as_parameters(dict.fromkeys(jax.eval_shape(_evaluate, initial, target.constrain), 0.0))
    return target


def _evaluate(position: Vector, function: Callable) -> Any:
    """Evaluate a function as an argument, so that arrays bound to it are traced, too."""
    return function(position)


def _bind(model: Callable, args: tuple, kwargs: dict, is_leaf: Callable[[Any], bool]) -> Partial:
    """Bind the arguments of a model: values for which `is_leaf` holds as arrays, others as
    constants."""
    values, structure = jax.tree.flatten((args, kwargs))
    arrays = {i: jnp.asarray(value) for i, value in enumerate(values) if is_leaf(value)}
    rest = [None if i in arrays else value for i, value in enumerate(values)]
    return Partial(_run, as_partial(model), Constants(structure, *rest), arrays)


def _run(model: Callable, constants: Constants, arrays: dict[int, Array]) -> Any:
    args, kwargs = _arguments(constants, arrays)
    return model(*args, **kwargs)


def _arguments(constants: Constants, arrays: dict[int, Array]) -> tuple[tuple, dict[str, Any]]:
    """Return the positional and the keyword arguments that were bound."""
    structure, *values = constants.values
    for i, array in arrays.items():
        values[i] = array
    return jax.tree.unflatten(structure, values)


def _is_array(value: Any) -> bool:
    is_numbers = isinstance(value, np.ndarray) and value.dtype.kind in "biufc"
    return is_numbers or isinstance(value, jax.Array)


def _is_nothing(value: Any) -> bool:
    del value
    return False


def _zeros(sites: dict[str, Site], plate: Plate | None) -> dict[str, Array]:
    """Return the latent sites at 0 on the unconstrained scale. Errors name a site that cannot be
    sampled."""
    latent = {name: site for name, site in sites.items() if site.is_latent}
    if not latent:
        raise ValueError(f"model must have a latent site to sample, got sites {sorted(sites)}")
    for name, site in latent.items():
        if site.is_discrete:
            raise ValueError(
                f"latent sites of model must be continuous, got {name!r} of "
                f"{site.distribution.__name__}; sum it out, e.g. with a mixture distribution"
            )
        if issubclass(site.distribution, Delta):
            raise ValueError(
                f"latent sites of model must be random, got {name!r} of Delta; use "
                "numpyro.deterministic"
            )
        if plate is not None and plate.name in site.plates:
            raise ValueError(
                f"latent sites of model must be outside its subsampled plate, got {name!r} inside "
                f"{plate.name!r}; drop subsample_size, or observe the site with `obs`"
            )
    return as_parameters({k: jnp.zeros(s.free_shape, s.dtype) for k, s in latent.items()})
