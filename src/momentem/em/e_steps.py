"""E-steps: the number of draws S, pooled over chains, that an M-step learns from.

`constant` keeps S. `geometric` multiplies it by a factor. `growing` is the paper's rule (section
3.2, after Levine and Casella 2001). It evaluates a test function q of the state and the mass,

    velocity()         q = M^-1 p
    thermostatted()    q = [M^-1 p, grad L - xi M^-1 p, p' M^-1 p]      for SGNHT

at subsampled iterations t_s = x_1 + … + x_s with x_i - 1 ~ Poisson(nu i^d), which become sparser as
the E-step continues. After the M-step, the mean of q is evaluated under the new mass. If all its
entries lie within their confidence intervals under the old mass, the update is dominated by Monte
Carlo error, and S grows: S <- S + S / S_I.

The interval is mean ± z sd / sqrt(n) in `growing`. In `growing_printed` it is mean ± z variance, as
the paper prints it. That is not an interval for a mean, and it depends on the units of q.

Both test functions are linear in features of the state (p; or p, grad L, xi p and p p'). The mean
of the features is therefore sufficient to evaluate the mean of q under another mass.

Deviates: the paper's q for HMC also has the entries grad L, which do not depend on the mass, and so
are always inside their intervals; its q for SGNHT has + xi M^-1 p, which is not the drift of p.
"""

from collections.abc import Callable
from statistics import NormalDist
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.tree_util import Partial
from jaxtyping import Array, Float

from momentem.checks import check_between, check_count, check_instance, check_positive
from momentem.masses import MatrixMass
from momentem.types import Count, Info, Learnt, Mass, PRNGKey, Scalar, Vector
from momentem.xla.keys import standard
from momentem.xla.once import run_if_due

__all__ = [
    "EStep",
    "TestFunction",
    "constant",
    "geometric",
    "growing",
    "growing_printed",
    "thermostatted",
    "velocity",
]


Values = Float[Array, " values"]  # of q


class EStep(NamedTuple):
    """Rule for the length of E-steps. Every state has a field `size`: S, in pooled draws."""

    size: Any  # S of the first E-step
    init: Callable[..., Any]  # (key, size, learnt) -> state
    observe: Callable[..., Any]  # (key, state, info of all chains, learnt) -> state
    renew: Callable[..., Any]  # (key, state, new learnt) -> state of the next E-step


class ConstantSize(NamedTuple):
    """State with S alone."""

    size: Count


class Subsamples(NamedTuple):
    """State with S, the subsampling clock, and sums over the subsamples of this E-step."""

    size: Count
    time: Count  # iterations since the E-step began
    ordinal: Count  # s of the next subsample
    next_time: Count  # t_s
    num_samples: Count  # number of subsampled states: subsamples times chains
    features: Any
    values: Values
    values_squared: Values


class TestFunction(NamedTuple):
    """Test function q of `growing`. `evaluate` is linear in the features, so it maps their mean to
    the mean of q."""

    __test__ = False  # pytest would take it for a test because of its name

    features: Callable[..., Any]  # (info of one chain, mass) -> features
    evaluate: Callable[..., Values]  # (features, mass) -> q


class Growth(NamedTuple):
    """Constants of the growing rule, in the paper's symbols: nu, d, S_I, z."""

    gap_rate: Any
    gap_power: Any
    growth: Any
    quantile: Any


def constant(size: int) -> EStep:
    """Return the rule for E-steps of constant size.

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
    """Return the rule for E-steps that grow by a constant factor.

    With a factor of 1.5, the last E-step covers a third of the run.

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
    test: TestFunction | None = None,
) -> EStep:
    """Return the rule for E-steps that grow when Monte Carlo error dominates their updates.

    The default values are the paper's.

    Args:
        size: S of the first E-step, pooled over chains.
        gap_rate: nu >= 1, the rate of the subsampling offsets.
        gap_power: d > 0, the power of the subsampling offsets.
        growth: S_I > 0. S grows by S / S_I.
        alpha: the interval has the coverage 1 - alpha.
        test: the test function q. Default: `velocity()`.

    Examples:
        >>> growing(300).size
        300
    """
    return _growing(_inside_interval_of_mean, size, gap_rate, gap_power, growth, alpha, test)


def growing_printed(
    size: int,
    gap_rate: float = 1.0,
    gap_power: float = 2.0,
    growth: float = 10.0,
    alpha: float = 0.05,
    test: TestFunction | None = None,
) -> EStep:
    """Return the rule of `growing` with the interval as the paper prints it, mean ± z variance.

    Args:
        size: as for `growing`.
        gap_rate: as for `growing`.
        gap_power: as for `growing`.
        growth: as for `growing`.
        alpha: as for `growing`.
        test: as for `growing`.

    Examples:
        >>> growing_printed(300).size
        300
    """
    return _growing(_inside_printed_interval, size, gap_rate, gap_power, growth, alpha, test)


def velocity() -> TestFunction:
    """Return the test function q = M^-1 p.

    Examples:
        >>> growing(300, test=velocity()).size
        300
    """
    return TestFunction(Partial(_momentum), Partial(_velocity))


def thermostatted() -> TestFunction:
    """Return the test function q = [M^-1 p, grad L - xi M^-1 p, p' M^-1 p].

    Its entries drive SGNHT's equations. It needs a kernel that reports a thermostat xi, and a
    diagonal or dense mass.

    Examples:
        >>> growing(300, test=thermostatted()).size
        300
    """
    return TestFunction(Partial(_thermostat_features), Partial(_thermostatted))


def _momentum(info: Info, mass: Mass) -> Vector:
    del mass
    return info.momentum


def _velocity(momentum: Vector, mass: Mass) -> Vector:
    return mass.velocity(momentum)


def _thermostat_features(info: Info, mass: Any) -> tuple[Vector, Vector, Vector, Any]:
    if "thermostat" not in info.stats:
        raise ValueError(
            "thermostatted() needs a kernel with a thermostat among its statistics, got "
            f"{sorted(info.stats)}; use velocity()"
        )
    remedy = "use diagonal_mass or dense_mass, or e_steps.velocity()"
    check_instance(MatrixMass, remedy, mass=mass)
    p = info.momentum
    return p, info.gradient, info.stats["thermostat"] * p, mass.outer(p[None])


def _thermostatted(features: tuple[Vector, Vector, Vector, Any], mass: Any) -> Values:
    p, gradient, braked, outer = features
    energy = mass.contract(outer)
    return jnp.concatenate([mass.velocity(p), gradient - mass.velocity(braked), energy[None]])


def _constant_init(key: PRNGKey, size: Any, learnt: Learnt) -> ConstantSize:
    del key, learnt
    return ConstantSize(jnp.asarray(size, int))


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
    return ConstantSize(jnp.ceil(factor * state.size.astype(float)).astype(state.size.dtype))


def _growing(
    is_inside: Callable,
    size: int,
    gap_rate: float,
    gap_power: float,
    growth: float,
    alpha: float,
    test: TestFunction | None,
) -> EStep:
    check_count(1, size=size)
    check_between(1.0, float("inf"), gap_rate=gap_rate)
    check_positive(gap_power=gap_power, growth=growth, alpha=alpha)
    check_between(0.0, 1.0, alpha=alpha)
    test = velocity() if test is None else test
    check_instance(TestFunction, "use e_steps.velocity() or thermostatted()", test=test)
    rule = Growth(gap_rate, gap_power, growth, NormalDist().inv_cdf(1 - alpha / 2))
    return EStep(
        size,
        Partial(_growing_init, rule, test),
        Partial(_growing_observe, rule, test),
        Partial(_growing_renew, rule, test, Partial(is_inside)),
    )


def _growing_init(
    rule: Growth, test: TestFunction, key: PRNGKey, size: Any, learnt: Learnt
) -> Subsamples:
    zeros, zero = (
        jnp.zeros_like(learnt.mass.inverse_mass_diagonal()),
        jnp.zeros_like(learnt.step_size),
    )
    nothing = Info(zeros, zeros, zeros, {"thermostat": zero})
    features = jax.tree.map(jnp.zeros_like, test.features(nothing, learnt.mass))
    values = jnp.zeros_like(test.evaluate(features, learnt.mass))
    first = jnp.array(1)
    return Subsamples(
        size=jnp.asarray(size, int),
        time=jnp.array(0),
        ordinal=first,
        next_time=_gap(rule, key, first),
        num_samples=jnp.array(0),
        features=features,
        values=values,
        values_squared=values,
    )


def _gap(rule: Growth, key: PRNGKey, ordinal: Count) -> Count:
    return 1 + jax.random.poisson(
        standard(key), rule.gap_rate * ordinal.astype(float) ** rule.gap_power, dtype=int
    )


def _growing_observe(
    rule: Growth, test: TestFunction, key: PRNGKey, state: Subsamples, info: Info, learnt: Learnt
) -> Subsamples:
    state = state._replace(time=state.time + 1)

    def gather(key: PRNGKey, state: Subsamples) -> Subsamples:
        features = jax.vmap(test.features, in_axes=(0, None))(info, learnt.mass)
        values = jax.vmap(test.evaluate, in_axes=(0, None))(features, learnt.mass)
        return state._replace(
            ordinal=state.ordinal + 1,
            next_time=state.next_time + _gap(rule, key, state.ordinal + 1),
            num_samples=state.num_samples + len(values),
            features=jax.tree.map(lambda a, b: a + jnp.sum(b, axis=0), state.features, features),
            values=state.values + jnp.sum(values, axis=0),
            values_squared=state.values_squared + jnp.sum(values**2, axis=0),
        )

    return run_if_due(state.time == state.next_time, gather, key, state)


def _growing_renew(
    rule: Growth,
    test: TestFunction,
    is_inside: Callable,
    key: PRNGKey,
    state: Subsamples,
    learnt: Learnt,
) -> Subsamples:
    n = state.num_samples.astype(state.values.dtype)
    old = state.values / n
    new = test.evaluate(jax.tree.map(lambda total: total / n, state.features), learnt.mass)
    variance = state.values_squared / n - old**2
    # with fewer than two subsamples there is no variance, and S does not grow (0 / 0 compares as
    # false)
    has_grounds = (state.num_samples > 1) & jnp.all(
        is_inside(jnp.abs(new - old), variance, n, rule.quantile)
    )
    size = state.size.astype(float)
    larger = jnp.ceil(size + size / rule.growth).astype(state.size.dtype)
    return _growing_init(rule, test, key, jnp.where(has_grounds, larger, state.size), learnt)


def _inside_interval_of_mean(distance: Values, variance: Values, n: Scalar, quantile: Any) -> Any:
    return distance <= quantile * jnp.sqrt(variance / n)


def _inside_printed_interval(distance: Values, variance: Values, n: Scalar, quantile: Any) -> Any:
    del n
    return distance <= quantile * variance
