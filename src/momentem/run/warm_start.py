"""Transfer of what a run has learnt to other libraries and to later runs.

BlackJAX's and NumPyro's `inverse_mass_matrix` is our inverse mass M_I = M^-1, on the unconstrained
scale, with parameters sorted by name. It has one axis if it is diagonal, and two axes otherwise.
"""

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from momentem.checks import check_instance
from momentem.masses import DenseMass, DiagonalMass, LowRankMass
from momentem.targets._minibatch import AnyTarget, check_target
from momentem.targets.parameters import parameter_names
from momentem.types import Learnt, Mass

if TYPE_CHECKING:
    import xarray

__all__ = ["inverse_mass_matrix", "last_positions", "learnt_from"]

# a dense mass has the arrays of a diagonal one too, so it is tried first
MASSES = (LowRankMass, DenseMass, DiagonalMass)


def inverse_mass_matrix(mass: Mass) -> Float[Array, "..."]:
    """Return the inverse mass M_I as the array that BlackJAX and NumPyro take: D numbers, or D x D.

    Args:
        mass: any mass. The matrix of a low-rank mass is written out in full.

    Examples:
        >>> import jax.numpy as jnp, momentem as mt
        >>> mt.inverse_mass_matrix(mt.diagonal_mass(jnp.array([1.0, 4.0]))).tolist()
        [1.0, 4.0]
    """
    check_instance(Mass, "take it from learnt_from(trace).mass", mass=mass)
    diagonal = mass.inverse_mass_diagonal()
    if isinstance(mass, DiagonalMass):
        return diagonal
    return jax.vmap(mass.velocity)(jnp.eye(len(diagonal), dtype=diagonal.dtype))


def learnt_from(trace: "xarray.DataTree", mass: Any = None) -> Learnt:
    """Return what a run had learnt by its end, bit for bit.

    `momentem.fixed(kernel, learnt)` then needs no warm-up, and
    `momentem.monte_carlo_em(kernel, learnt, ...)` continues to learn.

    Args:
        trace: what `sample` returned, for a sampler that learns.
        mass: the class of its mass, if it is your own. Default: one of momentem's masses.

    Examples:
        >>> import jax.numpy as jnp, momentem as mt
        >>> target = mt.density(lambda x: -0.5 * x @ x, initial=jnp.zeros(2))
        >>> kernel = mt.kernels.hmc(target, num_steps=4)
        >>> start = mt.Learnt(mt.diagonal_mass(jnp.ones(2)), 0.5)
        >>> learning = mt.monte_carlo_em(
        ...     kernel, start, mt.m_steps.fisher(), mt.e_steps.constant(100)
        ... )
        >>> trace = mt.sample(target, learning, num_draws=100, num_warmup=100)
        >>> sampler = mt.fixed(kernel, mt.learnt_from(trace))
        >>> positions = mt.last_positions(trace, target)
        >>> more = mt.sample(target, sampler, num_draws=100, num_warmup=0, positions=positions)
    """
    _check_trace(trace)
    if "em" not in trace.children:
        raise ValueError(
            f"trace must come from a sampler that learns, got groups {sorted(trace.children)} "
            "without `em`; for a sampler with a fixed mass, use that mass"
        )
    em = trace["em"].to_dataset()
    final = {
        str(name).removeprefix("final_"): jnp.asarray(array.values)
        for name, array in em.data_vars.items()
        if str(name).startswith("final_")
    }
    kinds = MASSES if mass is None else (mass,)
    kind = next((kind for kind in kinds if set(kind._fields) <= set(final)), None)
    if kind is None:
        raise ValueError(
            f"trace must hold the arrays of a known mass, got {sorted(final)}; give the class of "
            "the mass as mass=…"
        )
    fields = {name: final.pop(name) for name in kind._fields}
    return Learnt.from_arrays(kind(**fields), final)


def _last(trace: "xarray.DataTree", group: str) -> "xarray.Dataset":
    """Return the last draw of a group, or the last warm-up iteration if there are no draws."""
    name = group if group in trace.children else f"warmup_{group}"
    return trace[name].to_dataset().isel(draw=-1)


def last_positions(trace: "xarray.DataTree", target: AnyTarget) -> Any:
    """Return the last draw of every chain, for `momentem.sample(..., positions=...)`.

    Args:
        trace: what `sample` returned.
        target: the target that was sampled.

    Examples:
        >>> import jax.numpy as jnp, momentem as mt
        >>> target = mt.density(lambda x: -0.5 * x @ x, initial=jnp.zeros(2))
        >>> sampler = mt.hmc(target, step_size=1.0, num_steps=2)
        >>> trace = mt.sample(target, sampler)
        >>> positions = mt.last_positions(trace, target)
        >>> positions.shape
        (4, 2)
        >>> more = mt.sample(target, sampler, num_warmup=0, positions=positions)
    """
    _check_trace(trace)
    check_target(target)
    like = jax.eval_shape(target.constrain, target.initial)
    names, structure = parameter_names(like), jax.tree.structure(like)
    draws = _last(trace, "posterior")
    if missing := sorted(set(names) - set(map(str, draws.data_vars))):
        raise ValueError(
            f"trace must be of this target, got one without its parameter {missing[0]!r}; give the "
            "target that was sampled"
        )
    return jax.tree.unflatten(structure, [jnp.asarray(draws[name].values) for name in names])


def _check_trace(trace: Any) -> None:
    from xarray import DataTree

    check_instance(DataTree, "give what momentem.sample returned", trace=trace)
