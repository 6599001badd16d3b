"""Functions of a NumPyro model whose arguments are bound: its sites, its log density, and the maps
between its constrained sites and a flat vector."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from numpyro import handlers
from numpyro.distributions import biject_to
from numpyro.infer import init_to_feasible
from numpyro.infer.util import constrain_fn, potential_energy, unconstrain_fn

from momentem.bridges.foreign import Constants, usual_promotion
from momentem.targets.parameters import Parameters
from momentem.types import Scalar, Vector

__all__ = [
    "Site",
    "constrain",
    "kept_values",
    "logdensity",
    "observed_value",
    "run_with_kept",
    "sites",
    "unconstrain",
    "unwrap",
]


WRAPPERS = {"ExpandedDistribution", "Independent", "MaskedDistribution"}


class Site(NamedTuple):
    """A site of a model, as known before its value is computed."""

    kind: str  # NumPyro's type: sample, deterministic, plate, param, …
    args: tuple  # size and subsample_size, for a plate
    plates: dict[str, int]  # axis, counted from the last, of every plate around the site
    distribution: Any = None  # class of the distribution, for a sample site
    is_latent: bool = False
    is_discrete: bool = False
    shape: tuple[int, ...] = ()  # of the distribution
    event_dim: int = 0
    value_shape: tuple[int, ...] = ()
    free_shape: tuple[int, ...] = ()  # of a latent site on the unconstrained scale
    dtype: Any = None

    @property
    def is_kept(self) -> bool:
        """Whether the site is neither random nor computed, but held at its value."""
        return self.kind in ("param", "mutable")


def _site(message: dict[str, Any]) -> Site:
    plates = {frame.name: frame.dim for frame in message.get("cond_indep_stack") or ()}
    args = tuple(message.get("args") or ()) if message["type"] == "plate" else ()
    site = Site(message["type"], args, plates)
    if site.kind == "deterministic":
        return site._replace(value_shape=jnp.shape(message["value"]))
    if site.kind != "sample":
        return site
    law, value = message["fn"], message["value"]
    is_latent, is_discrete = not message["is_observed"], law.support.is_discrete
    is_free = is_latent and not is_discrete
    return site._replace(
        distribution=type(unwrap(law)),
        is_latent=is_latent,
        is_discrete=is_discrete,
        shape=tuple(law.shape()),
        event_dim=law.event_dim,
        value_shape=jnp.shape(value),
        free_shape=biject_to(law.support).inverse_shape(law.shape()) if is_free else (),
        dtype=jnp.result_type(value),
    )


def unwrap(law: Any) -> Any:
    """Return the distribution inside NumPyro's wrappers, which say nothing of it."""
    while type(law).__name__ in WRAPPERS:
        law = law.base_dist
    return law


def _trace(model: Callable) -> dict[str, Any]:
    with usual_promotion():
        start = handlers.substitute(handlers.seed(model, 0), substitute_fn=init_to_feasible)
        return handlers.trace(start).get_trace()


def sites(model: Callable) -> dict[str, Site]:
    """Return the model's sites by name. Their values are not computed, because that takes seconds
    without compilation."""
    found = {}

    def look() -> None:
        found.update({name: _site(message) for name, message in _trace(model).items()})

    jax.eval_shape(look)
    return found


def kept_values(model: Callable) -> dict[str, Any]:
    """Return the values that the model gives its `param` sites."""
    return {name: m["value"] for name, m in _trace(model).items() if _site(m).is_kept}


@partial(jax.jit, static_argnames="name")
def observed_value(model: Callable, name: str) -> Any:
    """Return the data of an observed site. The model is run, but only the data are computed."""
    return jnp.asarray(_trace(model)[name]["value"])


def run_with_kept(model: Callable, kept: dict[str, Any]) -> Any:
    """Run the model with its `param` sites held at their values, as in NumPyro's MCMC, and with a
    key for `numpyro.prng_key`."""
    with handlers.seed(rng_seed=0, hide_types=["sample", "plate"]), handlers.substitute(data=kept):
        return model()


def logdensity(model: Callable, unravel: Callable, position: Vector) -> Scalar:
    """Return log p(u) = -potential_energy(u)."""
    with usual_promotion():
        return -jnp.asarray(potential_energy(model, (), {}, unravel(position)))


def constrain(model: Callable, unravel: Callable, position: Vector) -> Parameters:
    """Return the constrained latent sites and the deterministic sites."""
    with usual_promotion():
        found = constrain_fn(model, (), {}, unravel(position), return_deterministic=True)
    return jax.tree.map(jnp.asarray, found)


def unconstrain(model: Callable, names: Constants, parameters: Parameters) -> Vector:
    """Return the flat vector of the latent sites with these names."""
    latent = {name: parameters[name] for name in names.values}
    with usual_promotion():
        return ravel_pytree(unconstrain_fn(model, (), {}, latent))[0]
