"""What stochastic kernels share: how a step is judged, told of, and undone if it diverged.

A step diverges if anything is not finite, or if the kinetic energy |y|^2 / 2 of the whitened
momentum y, which is chi-squared with D degrees of freedom, has run away. The chain is then put back
to where it was with a fresh momentum: nothing is lost, and the divergence is counted.
"""

from typing import Any

import jax
import jax.numpy as jnp

from momentem.checks import check_count, check_instance, check_positive
from momentem.kernels.integrators import Path
from momentem.targets._minibatch import StochasticTarget
from momentem.types import Array, Flag, Info, Learnt, PRNGKey, Scalar, Vector

__all__ = [
    "check_stochastic",
    "damping",
    "fresh_momentum",
    "is_runaway",
    "tell",
    "tell_thermostat",
]


def check_stochastic(target: StochasticTarget, num_steps: int, friction: float) -> None:
    """Checks what every stochastic factory takes."""
    remedy = "build it by momentem.dataset(…, batch_size=…)"
    check_instance(StochasticTarget, remedy, target=target)
    check_count(1, num_steps=num_steps)
    check_positive(friction=friction)


def fresh_momentum(key: PRNGKey, position: Vector) -> Vector:
    """A whitened momentum: standard normal, whatever the mass."""
    return jax.random.normal(key, position.shape, position.dtype)


def damping(friction: Any, rates: Any, time: Scalar) -> tuple[Any, Any]:
    """Decay and spread of the exact solution of dy = -f y dt + N(0, 2 A dt) over `time`."""
    decay = jnp.exp(-rates * time)
    return decay, jnp.sqrt(-friction * jnp.expm1(-2 * rates * time) / rates)


def is_runaway(path: Path) -> Flag:
    """Whether the path left the finite numbers or its kinetic energy ran away.

    The bound is 100 times the mean plus 100 standard deviations of chi-squared: far beyond what a
    healthy chain meets, well before overflow.
    """
    dim = len(path.position)
    kinetic = jnp.vdot(path.whitened, path.whitened)
    leaves = [path.position, path.whitened, *jax.tree.leaves(path.extra)]
    is_finite = jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in leaves]))
    return ~is_finite | ~(kinetic <= 100 * (dim + 10 * (2 * dim) ** 0.5))


def tell(
    learnt: Learnt, old: Any, new: Any, path: Path, extra_stats: dict[str, Array]
) -> tuple[Any, Info]:
    """The state and Info of a step from `old` to `new`, or of its undoing.

    Both states have the fields `position` and `whitened`.
    """
    is_divergent = is_runaway(path)
    restarted = old._replace(whitened=path.spare)
    state = jax.tree.map(lambda b, a: jnp.where(is_divergent, b, a), restarted, new)
    temperatures = jnp.where(is_divergent, jnp.nan, path.whitened_squared)
    stats = {
        "diverging": is_divergent,
        "kinetic_temperature": jnp.mean(temperatures),
        "temperature_spread": jnp.std(temperatures),
        "bias_scale": learnt.step_size**2 / 2 * jnp.max(learnt.noise),  # eps lambda_max(M^-1 Bhat)
    }

    def kept(samples: Array) -> Array:
        return jnp.where(is_divergent, 0.0, samples)

    info = Info(
        position=state.position,
        momentum=learnt.mass.colour(state.whitened),
        gradient=kept(path.gradient),
        stats=stats | extra_stats,
        noise=kept(path.noise),
        information=jax.tree.map(kept, path.information),
    )
    return state, info


def tell_thermostat(result: tuple[Any, Info]) -> tuple[Any, Info]:
    """Adds the thermostat that was kept: of a matrix, its mean over directions."""
    state, info = result
    xi = state.thermostat
    mean = xi if xi.ndim == 0 else jnp.trace(xi) / len(xi)
    return state, info._replace(stats=info.stats | {"thermostat": mean})
