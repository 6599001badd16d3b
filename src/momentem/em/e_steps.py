"""How long an E-step is: how many draws S, pooled over chains, an M-step learns from.

`constant` keeps S. `growing` is the paper's rule (section 3.2, after Levine and Casella 2001): a
test function

    q = [M^-1 p, grad L(theta)]

is evaluated at subsampled iterations t_s = x_1 + … + x_s with x_i - 1 ~ Poisson(nu i^d), which thin
out as the E-step goes on. After the M-step the mean of q is evaluated under the new mass, and if
all of it lies within its confidence interval under the old one, the update drowns in Monte Carlo
error: S <- S + S / S_I.

The interval is mean ± z sd / sqrt(n) in `growing`; in `growing_printed` it is mean ± z variance, as
printed (which is no interval for a mean, and depends on the units of q).

grad L does not depend on the mass, so that its entries lie inside whatever M becomes: only the
velocity M^-1 p is kept. It is linear in p, so that the mean of p is all it takes to evaluate its
mean under another mass.
"""

from collections.abc import Callable
from statistics import NormalDist
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.tree_util import Partial

from momentem.checks import check_between, check_count, check_positive
from momentem.types import Count, Info, Learnt, PRNGKey, Scalar, Vector

__all__ = ["EStep", "constant", "geometric", "growing", "growing_printed"]


class EStep(NamedTuple):
    """How long E-steps are. Every state has a field `size`: S, in pooled draws."""

    size: Any  # S of the first E-step
    init: Callable[..., Any]  # (key, size, learnt) -> state
    observe: Callable[..., Any]  # (key, state, info of all chains, learnt) -> state
    renew: Callable[..., Any]  # (key, state, new learnt) -> state of the next E-step


class ConstantSize(NamedTuple):
    """S alone."""

    size: Count


class Subsamples(NamedTuple):
    """S, the subsampling clock, and the sums over the subsamples gathered in this E-step."""

    size: Count
    time: Count  # iterations since the E-step began
    ordinal: Count  # s, of the next subsample
    next_time: Count  # t_s
    num_samples: Count  # subsampled momenta: s times the number of chains
    momentum: Vector
    velocity: Vector
    velocity_squared: Vector


class Growth(NamedTuple):
    """The constants of the growing rule, in the paper's symbols: nu, d, S_I, z."""

    gap_rate: Any
    gap_power: Any
    growth: Any
    quantile: Any


def constant(size: int) -> EStep:
    """E-steps of the same size.

    Args:
        size: S, draws per E-step, pooled over chains.

    Examples:
        >>> constant(200).size
        200
    """
    check_count(1, size=size)
    return EStep(
        size, Partial(_constant_init), Partial(_constant_observe), Partial(_constant_renew)
    )


def geometric(size: int, factor: float = 1.5) -> EStep:
    """E-steps that grow by the same factor each time: the last covers a third of the run at 1.5.

    Args:
        size: S of the first E-step, pooled over chains.
        factor: above 1.

    Examples:
        >>> geometric(100).size
        100
    """
    check_count(1, size=size)
    check_between(1.0, float("inf"), factor=factor)
    return EStep(
        size,
        Partial(_constant_init),
        Partial(_constant_observe),
        Partial(_geometric_renew, factor),
    )


def growing(
    size: int,
    gap_rate: float = 1.0,
    gap_power: float = 2.0,
    growth: float = 10.0,
    alpha: float = 0.05,
) -> EStep:
    """E-steps that grow once their updates drown in Monte Carlo error. The defaults are the
    paper's.

    Args:
        size: S of the first E-step, pooled over chains.
        gap_rate: nu >= 1, of the subsampling offsets.
        gap_power: d > 0, of the subsampling offsets.
        growth: S_I > 0; S grows by S / S_I.
        alpha: the interval covers 1 - alpha.

    Examples:
        >>> growing(300).size
        300
    """
    return _growing(_inside_interval_of_mean, size, gap_rate, gap_power, growth, alpha)


def growing_printed(
    size: int,
    gap_rate: float = 1.0,
    gap_power: float = 2.0,
    growth: float = 10.0,
    alpha: float = 0.05,
) -> EStep:
    """`growing` with the interval as the paper prints it, mean ± z variance.

    Args:
        size: as for `growing`.
        gap_rate: as for `growing`.
        gap_power: as for `growing`.
        growth: as for `growing`.
        alpha: as for `growing`.
    """
    return _growing(_inside_printed_interval, size, gap_rate, gap_power, growth, alpha)


def _constant_init(key: PRNGKey, size: Any, learnt: Learnt) -> ConstantSize:
    del key, learnt
    return ConstantSize(jnp.asarray(size))


def _constant_observe(
    key: PRNGKey, state: ConstantSize, info: Info, learnt: Learnt
) -> ConstantSize:
    del key, info, learnt
    return state


def _constant_renew(key: PRNGKey, state: ConstantSize, learnt: Learnt) -> ConstantSize:
    del key, learnt
    return state


def _geometric_renew(
    factor: Any, key: PRNGKey, state: ConstantSize, learnt: Learnt
) -> ConstantSize:
    del key, learnt
    return ConstantSize(jnp.ceil(factor * state.size).astype(state.size.dtype))


def _growing(
    is_inside: Callable, size: int, gap_rate: float, gap_power: float, growth: float, alpha: float
) -> EStep:
    check_count(1, size=size)
    check_between(1.0, float("inf"), gap_rate=gap_rate)
    check_positive(gap_power=gap_power, growth=growth, alpha=alpha)
    check_between(0.0, 1.0, alpha=alpha)
    rule = Growth(gap_rate, gap_power, growth, NormalDist().inv_cdf(1 - alpha / 2))
    return EStep(
        size,
        Partial(_growing_init, rule),
        Partial(_growing_observe, rule),
        Partial(_growing_renew, rule, Partial(is_inside)),
    )


def _growing_init(rule: Growth, key: PRNGKey, size: Any, learnt: Learnt) -> Subsamples:
    zeros, first = jnp.zeros_like(learnt.mass.precision_diagonal()), jnp.array(1)
    return Subsamples(
        size=jnp.asarray(size),
        time=jnp.array(0),
        ordinal=first,
        next_time=_gap(rule, key, first),
        num_samples=jnp.array(0),
        momentum=zeros,
        velocity=zeros,
        velocity_squared=zeros,
    )


def _gap(rule: Growth, key: PRNGKey, ordinal: Count) -> Count:
    return 1 + jax.random.poisson(
        key, rule.gap_rate * ordinal.astype(float) ** rule.gap_power, dtype=int
    )


def _growing_observe(
    rule: Growth, key: PRNGKey, state: Subsamples, info: Info, learnt: Learnt
) -> Subsamples:
    time = state.time + 1

    def gather() -> Subsamples:
        velocities = jax.vmap(learnt.mass.velocity)(info.momentum)
        return Subsamples(
            size=state.size,
            time=time,
            ordinal=state.ordinal + 1,
            next_time=state.next_time + _gap(rule, key, state.ordinal + 1),
            num_samples=state.num_samples + len(velocities),
            momentum=state.momentum + jnp.sum(info.momentum, axis=0),
            velocity=state.velocity + jnp.sum(velocities, axis=0),
            velocity_squared=state.velocity_squared + jnp.sum(velocities**2, axis=0),
        )

    return jax.lax.cond(time == state.next_time, gather, lambda: state._replace(time=time))


def _growing_renew(
    rule: Growth, is_inside: Callable, key: PRNGKey, state: Subsamples, learnt: Learnt
) -> Subsamples:
    n = state.num_samples.astype(state.velocity.dtype)
    old, new = state.velocity / n, learnt.mass.velocity(state.momentum / n)
    variance = state.velocity_squared / n - old**2
    # without two subsamples there is no variance, and no ground to grow on (0 / 0 compares as
    # false)
    has_grounds = (state.num_samples > 1) & jnp.all(
        is_inside(jnp.abs(new - old), variance, n, rule.quantile)
    )
    larger = jnp.ceil(state.size + state.size / rule.growth).astype(state.size.dtype)
    return _growing_init(rule, key, jnp.where(has_grounds, larger, state.size), learnt)


def _inside_interval_of_mean(distance: Vector, variance: Vector, n: Scalar, quantile: Any) -> Any:
    return distance <= quantile * jnp.sqrt(variance / n)


def _inside_printed_interval(distance: Vector, variance: Vector, n: Scalar, quantile: Any) -> Any:
    del n
    return distance <= quantile * variance
