"""What a run has learnt, out to other libraries and in to the next run.

BlackJAX's and NumPyro's `inverse_mass_matrix` is our M_I = M^-1, on the unconstrained
scale, with parameters in the order of their names: of one axis where it is diagonal, of two where
it is not.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
from xarray import Dataset, DataTree

from momentem.checks import check_instance
from momentem.masses.all import DenseMass, DiagonalMass, diagonal_mass, low_rank_mass
from momentem.targets._density import parameter_names
from momentem.targets._minibatch import AnyTarget
from momentem.types import Learnt, Mass

__all__ = ["inverse_mass_matrix", "last_positions", "learnt_from"]


def inverse_mass_matrix(mass: Mass) -> Float[Array, "..."]:
    """M_I as the array that BlackJAX and NumPyro take: D numbers, or D x D.

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


def learnt_from(trace: DataTree) -> Learnt:
    """What a run had learnt by its end.

    With it `momentem.fixed(kernel, learnt)` needs no warm-up to learn in, and
    `momentem.monte_carlo_em(kernel, learnt, ...)` learns on.

    Args:
        trace: what `sample` returned, of a sampler that learns.

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
    check_instance(DataTree, "give what momentem.sample returned", trace=trace)
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
    others = {name: final[name] for name in Learnt._fields if name in final}
    return Learnt(_mass(final), **others)


def _last(trace: DataTree, group: str) -> Dataset:
    """The last draw of a group, or of the warm-up where no draws were made."""
    name = group if group in trace.children else f"warmup_{group}"
    return trace[name].to_dataset().isel(draw=-1)


def _mass(final: dict[str, Array]) -> Mass:
    if "scale" in final:
        return low_rank_mass(final["scale"], final["directions"].T, final["eigenvalues"])
    if "factor" in final:  # the frame that the noise is given in
        return DenseMass(final["inverse_mass"], final["factor"], final["root"])
    return diagonal_mass(final["inverse_mass"])


def last_positions(trace: DataTree, target: AnyTarget) -> Any:
    """The last draw of every chain, for `momentem.sample(..., positions=...)`.

    Args:
        trace: what `sample` returned.
        target: what it was sampled from.
    """
    check_instance(DataTree, "give what momentem.sample returned", trace=trace)
    check_instance(AnyTarget, "give the target that was sampled", target=target)
    like = jax.eval_shape(target.constrain, target.initial)
    names, structure = parameter_names(like), jax.tree.structure(like)
    draws = _last(trace, "posterior")
    if missing := sorted(set(names) - set(map(str, draws.data_vars))):
        raise ValueError(
            f"trace must be of this target, got one without its parameter {missing[0]!r}"
        )
    return jax.tree.unflatten(structure, [jnp.asarray(draws[name].values) for name in names])
