"""Kernels from BlackJAX algorithms that take a step size and an inverse mass matrix.

    Learnt.step_size   -> step_size
    Learnt.mass        -> inverse_mass_matrix      M_I = M^-1; a low-rank mass keeps its form

The algorithm is built inside every step from what is learnt, which costs nothing once it is
compiled. BlackJAX redraws momenta in every step, so a change of mass needs no transport. Info has
the momentum at the end of the step where BlackJAX reports it (HMC and its variants). Otherwise it
has the momentum at the beginning of the step (NUTS), or zeros. The `momentum` M-steps learn from
transients, and need the momentum at the end.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.tree_util import Partial

from momentem.bridges.foreign import Constants, usual_promotion
from momentem.checks import check_callable
from momentem.masses import DiagonalMass, LowRankMass
from momentem.run.warm_start import inverse_mass_matrix
from momentem.targets._minibatch import AnyTarget, check_target
from momentem.types import Info, Kernel, Learnt, Mass, PRNGKey, Scalar, Vector

__all__ = ["from_blackjax", "inverse_mass_of"]

OPEN = ("step_size", "inverse_mass_matrix")
NAMES = {  # BlackJAX's names of statistics, and ArviZ's
    "acceptance_rate": "acceptance_rate",
    "energy": "energy",
    "num_integration_steps": "n_steps",
    "num_trajectory_expansions": "tree_depth",
}


def from_blackjax(algorithm: Callable[..., Any], target: AnyTarget, **parameters: Any) -> Kernel:
    """Return the kernel of a BlackJAX algorithm. Mass and step size are left open.

    Args:
        algorithm: e.g. `blackjax.nuts`, `blackjax.hmc`, `blackjax.dynamic_hmc`.
        target: the target to sample. All data are used.
        **parameters: further parameters of the algorithm, e.g. `num_integration_steps` of
            `blackjax.hmc`. They are constants of the compiled program.

    Examples:
        >>> import blackjax, jax.numpy as jnp, momentem as mt
        >>> target = mt.density(lambda x: -0.5 * x @ x, initial=jnp.zeros(2))
        >>> nuts_em = mt.monte_carlo_em(
        ...     mt.from_blackjax(blackjax.nuts, target),
        ...     mt.Learnt(mt.diagonal_mass(jnp.ones(2)), 0.5),
        ...     m_step=mt.m_steps.fisher(),
        ...     e_step=mt.e_steps.constant(100),
        ... )
    """
    check_callable(algorithm=algorithm)
    check_target(target)
    if taken := [name for name in OPEN if name in parameters]:
        raise ValueError(f"{taken[0]} must be left open, because EM sets it; give it in Learnt")
    constants = Constants(
        algorithm, *(part for item in sorted(parameters.items()) for part in item)
    )
    _check(constants, target)
    return Kernel(Partial(_init, constants, target), Partial(_step, constants, target))


def _build(constants: Constants, target: AnyTarget, learnt: Learnt) -> Any:
    algorithm, *items = constants.values
    parameters = dict(zip(items[::2], items[1::2], strict=True))
    return algorithm(
        Partial(_bounded, target.logdensity),
        step_size=learnt.step_size,
        inverse_mass_matrix=inverse_mass_of(learnt.mass),
        **parameters,
    )


def _bounded(logdensity: Callable[[Vector], Scalar], position: Vector) -> Scalar:
    """Return the log density, or NaN where it is +infinity: BlackJAX would move there for ever."""
    value = logdensity(position)
    return jnp.where(value == jnp.inf, jnp.nan, value)


def inverse_mass_of(mass: Mass) -> Any:
    """Return M^-1 in BlackJAX's form: a vector, a matrix, or a low-rank one."""
    if isinstance(mass, LowRankMass):
        from blackjax.mcmc.metrics import LowRankInverseMassMatrix

        return LowRankInverseMassMatrix(mass.scale, mass.directions.T, mass.eigenvalues)
    return inverse_mass_matrix(mass)


def _check(constants: Constants, target: AnyTarget) -> None:
    """Refuse an algorithm that cannot be built this way, or whose state lacks what Info needs."""
    theirs = getattr(constants.values[0], "differentiable", constants.values[0])
    name = getattr(theirs, "__module__", repr(theirs))
    if target.initial.dtype != jnp.zeros(()).dtype:
        raise TypeError(
            f"target must have JAX's default precision, which BlackJAX uses, "
            f"{jnp.zeros(()).dtype}, got {target.initial.dtype}; cast its `initial`, or set "
            "jax_enable_x64"
        )
    ones = jnp.ones_like(target.initial)
    learnt = Learnt(DiagonalMass(ones), jnp.ones((), ones.dtype))
    try:
        state = jax.eval_shape(_init, constants, target, jax.random.key(0), target.initial, learnt)
    except TypeError as error:
        raise TypeError(
            "algorithm must take (logdensity, step_size, inverse_mass_matrix) and the parameters "
            f"given, like blackjax.nuts, got {name}, which says: {error}"
        ) from error
    if lacking := [
        f for f in ("position", "logdensity", "logdensity_grad") if not hasattr(state, f)
    ]:
        raise TypeError(
            f"algorithm must keep position, logdensity and logdensity_grad in its state, like "
            f"blackjax.nuts, got {name}, whose state lacks {lacking[0]}"
        )


def _init(
    constants: Constants, target: AnyTarget, key: PRNGKey, position: Vector, learnt: Learnt
) -> Any:
    with usual_promotion():
        return _build(constants, target, learnt).init(position, key)


def _step(
    constants: Constants, target: AnyTarget, key: PRNGKey, state: Any, learnt: Learnt
) -> tuple[Any, Info]:
    with usual_promotion():
        state, info = _build(constants, target, learnt).step(key, state)
    stats = {"lp": state.logdensity, "diverging": jnp.asarray(getattr(info, "is_divergent", False))}
    for theirs, ours in NAMES.items():
        if hasattr(info, theirs):
            stats[ours] = jnp.asarray(getattr(info, theirs))
    momentum = getattr(info, "momentum", jnp.zeros_like(state.position))
    if hasattr(getattr(info, "proposal", None), "momentum"):
        momentum = jnp.where(info.is_accepted, info.proposal.momentum, momentum)
        # BlackJAX reports the energy of the proposal, even if it was not accepted
        stats["energy"] = learnt.mass.kinetic_energy(momentum) - state.logdensity
    return state, Info(state.position, momentum, state.logdensity_grad, stats)
