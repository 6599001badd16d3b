"""Starts of chains: overdispersed around the user's initial position, where the density is
finite."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool

from momentem.checks import check_between, check_count
from momentem.targets._minibatch import AnyTarget
from momentem.targets.origin import small_data
from momentem.targets.parameters import parameter_names
from momentem.types import Flag, PRNGKey, Scalar, Vector, Vectors
from momentem.xla.compile import bounded, program, shapes_of

__all__ = ["given_starts", "starts"]

NUM_ATTEMPTS = 20  # each halves the noise, so the last attempts are practically at `initial`


def starts(key: PRNGKey, target: AnyTarget, num_chains: int, spread: float) -> Vectors:
    """Draw a start per chain: `initial` plus uniform noise.

    Where the density or the score is not finite, the start is drawn again with half the noise.

    Args:
        key: a typed JAX key.
        target: the target to sample.
        num_chains: number of starts.
        spread: half-width of the noise on the unconstrained scale. With 0, every chain starts at
            `initial`.

    Raises:
        ValueError: if the density or its gradient is not finite at `initial` and at all places
            tried near it.

    Examples:
        >>> import jax, momentem as mt
        >>> target = mt.density(lambda x: -x**2, initial=3.0)
        >>> mt.starts(jax.random.key(0), target, num_chains=4, spread=1.0).shape
        (4, 1)
    """
    check_count(1, num_chains=num_chains)
    check_between(0.0, np.inf, spread=spread)
    positions, is_usable = _find_starts(key, target, float(spread), num_chains=int(num_chains))
    if not np.asarray(is_usable).all():
        check_start(target, target.initial)
    return positions


@partial(program, is_brief=True, static_argnames="num_chains")
def _find_starts(
    key: PRNGKey, target: AnyTarget, spread: Any, *, num_chains: int
) -> tuple[Vectors, Bool[Array, " chains"]]:
    """Return positions, and whether each is usable. Positions that are not usable are `initial`."""
    keys = jax.random.split(key, NUM_ATTEMPTS)
    initial = jnp.broadcast_to(target.initial, (num_chains, len(target.initial)))

    def goes_on(carry: tuple) -> Flag:
        i, _, _, is_usable = carry
        return (i < NUM_ATTEMPTS) & ~jnp.all(is_usable)

    def attempt(carry: tuple) -> tuple:
        i, width, positions, is_usable = carry
        noise = jax.random.uniform(keys[i], initial.shape, initial.dtype, minval=-1, maxval=1)
        positions = jnp.where(is_usable[:, None], positions, initial + width * noise)
        return i + 1, width / 2, positions, _is_usable(target, positions)

    width = jnp.asarray(spread, initial.dtype)
    none = jnp.zeros((), int), width, initial, jnp.zeros(num_chains, bool)
    *_, positions, is_usable = jax.lax.while_loop(goes_on, attempt, none)
    return jnp.where(is_usable[:, None], positions, initial), is_usable


def _is_usable(target: AnyTarget, positions: Vectors) -> Bool[Array, " chains"]:
    value, gradient = jax.vmap(jax.value_and_grad(target.logdensity))(positions)
    return jnp.isfinite(value) & jnp.isfinite(gradient).all(axis=1)


@bounded
def value_and_gradient(target: AnyTarget, position: Vector) -> tuple[Scalar, Vector]:
    """Return the log density and its gradient. The target's data are arguments of the program."""
    return jax.value_and_grad(target.logdensity)(position)


def given_starts(target: AnyTarget, positions: Any, num_chains: int) -> Vectors:
    """Check the user's own starts, and return them as unconstrained vectors.

    The starts are constrained parameters with a leading axis of chains. Quantities that the model
    computes from the parameters may be left out.
    """
    like = _drop_computed(target, shapes_of(target.constrain, target.initial))
    positions = _drop_computed(target, positions)
    expected = jax.tree.map(lambda leaf: (num_chains, *leaf.shape), like)
    found = jax.tree.map(np.shape, positions)
    if found != expected:
        raise ValueError(
            f"positions must be like initial with a leading axis of {num_chains} chains, with "
            f"shapes {expected}, got {found}"
        )
    arrays = jax.tree.map(lambda leaf, model: jnp.asarray(leaf, model.dtype), positions, like)
    vectors = jax.vmap(target.unconstrain)(arrays)
    for chain, vector in enumerate(vectors):
        given = jax.tree.map(lambda leaf, chain=chain: leaf[chain], arrays)
        _check_support(target, chain, given, vector)
        check_start(target, vector)
    return vectors


def _drop_computed(target: AnyTarget, parameters: Any) -> Any:
    """Return named parameters without the quantities that a model computes from them."""
    names = shapes_of(target.unravel, target.initial)
    if not (isinstance(names, dict) and isinstance(parameters, dict)):
        return parameters
    # unknown names stay, so that a misspelt one is not taken for a computed quantity
    computed = shapes_of(target.constrain, target.initial).keys() - names.keys()
    return {name: value for name, value in parameters.items() if name not in computed}


def _check_support(target: AnyTarget, chain: int, given: Any, vector: Vector) -> None:
    """Refuse parameters outside their support: they change when they are unconstrained and
    constrained again."""
    back = jax.tree.leaves(_drop_computed(target, target.constrain(vector)))
    tolerance = 1e-3 if vector.dtype == jnp.float32 else 1e-6
    for name, a, b in zip(parameter_names(given), jax.tree.leaves(given), back, strict=True):
        if not np.allclose(a, b, rtol=tolerance, atol=tolerance):
            raise ValueError(
                f"positions of {name!r} must satisfy its constraint, got {a} in chain {chain}"
            )


def _blame_data(target: AnyTarget) -> str:
    """Say which of the data of a model are not finite."""
    for name, values in small_data(target.origin).get("observed_data", {}).items():
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            place = np.argwhere(~np.isfinite(values))[0].tolist()
            return f"data {name!r}, which are {values[tuple(place)]} at {place}; and at "
    return ""


def check_start(target: AnyTarget, position: Vector) -> None:
    """Refuse a position where the density or its gradient is not finite. The error names the
    parameter and its value."""
    value, gradient = value_and_gradient(target, position)
    if np.isfinite(value) and np.isfinite(gradient).all():
        return
    parameters = _drop_computed(target, target.constrain(position))
    gradients = target.unravel(gradient)
    listed = zip(
        parameter_names(parameters),
        jax.tree.leaves(parameters),
        jax.tree.leaves(gradients),
        strict=True,
    )
    rows = [(name, value, slope, bool(np.isfinite(slope).all())) for name, value, slope in listed]
    # a density that is -inf everywhere nearby has a finite gradient, 0: any parameter may be the
    # cause
    blamed = [row for row in rows if not row[3]] or rows
    shown = "; ".join(
        f"{name} = {theta} (gradient {slope})" for name, theta, slope, _ in blamed[:5]
    )
    shown = _blame_data(target) + shown
    more = f" and {len(blamed) - 5} more" if len(blamed) > 5 else ""
    raise ValueError(
        f"a start must have a finite log density and gradient, got log density {value} at "
        f"{shown}{more}; "
        "give another `initial`, or a constraint if a parameter is outside its support"
    )
