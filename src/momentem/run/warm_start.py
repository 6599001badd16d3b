"""What a run has learnt, out to other libraries and in to the next run.

BlackJAX's and NumPyro's `inverse_mass_matrix` is our M_I = M^-1, on the unconstrained
scale, with parameters in the order of their names: of one axis where it is diagonal, of two where
it is not.
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
    """Return M_I as the array that BlackJAX and NumPyro take: D numbers, or D x D.

    Args:
        mass: any; a low-rank one is written out in full.

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
    """Return what a run had learnt by its end, to the same bits.

    With it `momentem.fixed(kernel, learnt)` needs no warm-up to learn in, and
    `momentem.monte_carlo_em(kernel, learnt, ...)` learns on.

    Args:
        trace: what `sample` returned, of a sampler that learns.
        mass: the class of its mass, if that is not one of momentem's.

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
            "without `em`; with a mass held fixed, give that mass"
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
    """Return the last draw of a group, or of the warm-up where no draws were made."""
    name = group if group in trace.children else f"warmup_{group}"
    return trace[name].to_dataset().isel(draw=-1)


def last_positions(trace: "xarray.DataTree", target: AnyTarget) -> Any:
    """Return the last draw of every chain, for `momentem.sample(..., positions=...)`.

    Args:
        trace: what `sample` returned.
        target: what it was sampled from.
    """
    _check_trace(trace)
    check_target(target)
    like = jax.eval_shape(target.constrain, target.initial)
    names, structure = parameter_names(like), jax.tree.structure(like)
    draws = _last(trace, "posterior")
    if missing := sorted(set(names) - set(map(str, draws.data_vars))):
        raise ValueError(
            f"trace must be of this target, got one without its parameter {missing[0]!r}"
        )
    return jax.tree.unflatten(structure, [jnp.asarray(draws[name].values) for name in names])


def _check_trace(trace: Any) -> None:
    from xarray import DataTree

    check_instance(DataTree, "give what momentem.sample returned", trace=trace)
